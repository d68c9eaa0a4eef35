"""A server with many clients, compared with ``predict`` on the same files and cores.

    python benchmarks/serving.py [--clients 200] [--requests 2000] [--backbone efficientnet_lite0]

The server is a process of its own; the clients run in this script, so they take time away from
it. Prints latency, throughput and their ratio to that of ``predict``.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
from common import Result, clock, finish, one_thread, photographs

from lmd.deploy.export import export_onnx
from lmd.deploy.predict import load
from lmd.model import ModelSpec, build_model, save_model

SIZE, CLASSES, FILES = 64, 8, 64


def write_model(folder: Path, backbone: str) -> Path:
    model, pre = build_model(backbone, "none", CLASSES, image_size=SIZE, seed=0)
    names = tuple(f"class {k}" for k in range(CLASSES))
    width = model.classifier.in_features
    save_model(
        model,
        folder,
        ModelSpec(names, backbone, "linear", width, pre, "none", (1,) * CLASSES),
    )
    return export_onnx(folder, folder / "model.onnx")


async def load_test(address: str, images: list[bytes], clients: int, requests: int) -> list[float]:
    """Seconds of every request; ``clients`` send them one after the other."""
    url, left, taken = f"{address}api/models/model/predict", iter(range(requests)), []
    limits = httpx.Limits(max_connections=clients)

    async def client(session: httpx.AsyncClient) -> None:
        for number in left:
            start = time.perf_counter()
            while True:
                files = {"image": ("a.jpg", images[number % len(images)])}
                found = await session.post(url, files=files)
                if found.status_code != 503:
                    break
                await asyncio.sleep(float(found.headers["Retry-After"]))
            found.raise_for_status()
            taken.append(time.perf_counter() - start)

    async with httpx.AsyncClient(limits=limits, timeout=120) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return taken


def measure(backbone: str, clients: int, requests: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder, backbone)
        paths = photographs(folder, FILES)
        images = [path.read_bytes() for path in paths]
        files = [paths[i % FILES] for i in range(requests)]
        predictor = load(model)
        predictor.predict(files[:64])
        alone = requests / clock(lambda: predictor.predict(files))
        command = [sys.executable, "-m", "lmd", "serve", str(model), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "page:" in line).split()[-1]
            asyncio.run(load_test(address, images, 8, 64))
            start = time.perf_counter()
            taken = asyncio.run(load_test(address, images, clients, requests))
            rate = requests / (time.perf_counter() - start)
        finally:
            server.terminate()
            server.wait()
    middle, late = np.percentile(taken, [50, 99])
    print(f"{backbone}, {requests} requests of {clients} clients, JPEG files of 600 x 450 px:")
    print(f"  predict {alone:.0f} images/s, served {rate:.0f} images/s")
    print(f"  latency: median {1000 * middle:.0f} ms, 99 % within {1000 * late:.0f} ms")
    return [Result("serving: throughput over that of predict", rate / alone, 0.3, True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json")
    options = parser.parse_args()
    one_thread()
    found = measure(options.backbone, options.clients, options.requests)
    sys.exit(finish(found, options.json))
