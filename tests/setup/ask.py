"""Asks a served model one question over the OpenAI API, through the deployer's own tunnel. usage: ask.py HOST"""

from __future__ import annotations

import json
import sys
import urllib.request

from deployer.inventory.load import load
from deployer.transport.open import opened


def main() -> None:
    inventory = load(sys.argv[1])
    ask = {
        "model": inventory.serve.served_model_name,
        "prompt": inventory.serve.prompt,
        "max_tokens": 32,
        "temperature": 0,
    }
    with (
        opened(inventory, local=False) as transport,
        transport.forward("127.0.0.1", inventory.serve.port) as port,
    ):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            data=json.dumps(ask).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            answer = json.load(reply)
    print(f"POST /v1/completions {json.dumps(ask)}")
    print(f"{inventory.serve.prompt}{answer['choices'][0]['text']}")
    print(f"usage: {json.dumps(answer['usage'])}")


if __name__ == "__main__":
    main()
