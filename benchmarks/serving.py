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


def request(host: str, image: bytes) -> bytes:
    """The bytes of one POST."""
    part = 'Content-Disposition: form-data; name="image"; filename="a.jpg"'
    body = f"--x\r\n{part}\r\nContent-Type: image/jpeg\r\n\r\n".encode() + image + b"\r\n--x--\r\n"
    head = f"POST /api/models/model/predict HTTP/1.1\r\nHost: {host}\r\n"
    head += f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> int:
    """The status of one answer, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = head.lower().splitlines()
    length = next(line for line in lines if line.startswith("content-length:"))
    await reader.readexactly(int(length.partition(":")[2]))
    return int(head.split()[1])


async def load_test(address: str, images: list[bytes], clients: int, requests: int) -> list[float]:
    """Seconds of every request; ``clients`` send them one after the other.

    Plain sockets, because clients with a pool need more time than the server.
    """
    host = address.split("/")[2]
    name, port = host.split(":")
    ready, left, taken = [request(host, each) for each in images], iter(range(requests)), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(name, int(port))
        for number in left:
            start = time.perf_counter()
            writer.write(ready[number % len(ready)])
            while (status := await answer(reader)) == 503:
                await asyncio.sleep(1)
                writer.write(ready[number % len(ready)])
            assert status == 200, status
            taken.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
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
