"""LMD: its rows, its two stages and their formulas."""

PAPER = (
    "Pan et al., Long-tailed Medical Diagnosis with Relation-aware Representation Learning and "
    "Iterative Classifier Calibration"
)
