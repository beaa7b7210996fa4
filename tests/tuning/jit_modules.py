"""Build descriptions as FlashInfer's generators return them, without a compiler."""

from pathlib import Path

builds: list[str] = []


class Spec:
    def __init__(self, name, *, is_compiled):
        self.name = name
        self.is_compiled = is_compiled

    def get_object_paths(self):
        return [Path("cached_ops", self.name, f"{source}.cuda.o") for source in ("first", "second")]

    def build_and_load(self):
        builds.append(self.name)


def gen_there_module():
    return Spec("there", is_compiled=True)


def gen_missing_module():
    return Spec("missing", is_compiled=False)


def gen_broken_module():
    raise RuntimeError("Could not find nvcc")
