"""A small model of text vectors behind an OpenAI-compatible endpoint: the mean of the vectors of a text's tokens.

The weights (32,000 tokens, 256 half-precision numbers each, made from the token embeddings of large models) and the vocabulary are
those of the package wordllama, whose code is not used: it wants other packages. Prints its port in a line, and serves until it is ended.
"""

import importlib.util
import json
import mmap
import pathlib
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tokenizers import Tokenizer

FOLDER = pathlib.Path(importlib.util.find_spec("wordllama").origin).parent
VOCABULARY = FOLDER / "tokenizers/l2_supercat_tokenizer_config.json"
WEIGHTS = FOLDER / "weights/l2_supercat_256.safetensors"


class Model:
    def __init__(self):
        self.tokenizer = Tokenizer.from_file(str(VOCABULARY))
        with open(WEIGHTS, "rb") as file:
            self.weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Safetensors format: the length of a JSON header, the header, and the numbers.
        (length,) = struct.unpack_from("<Q", self.weights)
        tensor = json.loads(self.weights[8 : 8 + length])["embedding.weight"]
        assert tensor["dtype"] == "F16"
        self.numbers = tensor["shape"][1]
        self.start = 8 + length + tensor["data_offsets"][0]

    def row(self, token):
        return struct.unpack_from(f"<{self.numbers}e", self.weights, self.start + 2 * self.numbers * token)

    def vector(self, text):
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids or [0]
        return [sum(column) / len(tokens) for column in zip(*map(self.row, tokens))]


MODEL = Model()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        vectors = [MODEL.vector(text) for text in asked["input"]]
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        body = json.dumps({"object": "list", "model": asked["model"], "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
