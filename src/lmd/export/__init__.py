"""Export a shipped model to ONNX."""
