"""A deployment file becomes a :class:`Deployment`: schema, then lookup of GPU and models, then contradictions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune_planner.deployment import models
from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.gpus import gpu_of_form, load_gpu
from autotune_planner.deployment.launch_in_file import launch_of_file
from autotune_planner.deployment.launch_line import LaunchLine
from autotune_planner.deployment.model import (
    Decode,
    Deployment,
    Gpu,
    Model,
    Moe,
    Parallel,
    Prefill,
    SourceMarks,
    Speculative,
    Traffic,
)
from autotune_planner.deployment.plain_form import PlainForm, plain_form
from autotune_planner.deployment.problems import mark_of, raise_problems
from autotune_planner.deployment.yaml_source import read_yaml
from autotune_planner.errors import DeploymentError
from autotune_planner.values import dataclass

if TYPE_CHECKING:
    from autotune_planner.deployment.schema import DeploymentForm

EXTEND_VARIABLE = "SGLANG_FLASHINFER_AUTOTUNE_EXTEND"

_TRUTH = {"true": True, "1": True, "yes": True, "y": True, "false": False, "0": False, "no": False, "n": False}


def load_deployment(path: str | Path, model_dir: str | None = None) -> Deployment:
    """Read and check a deployment file.

    ``model_dir`` holds the ``config.json`` folders of models on this machine: the last component of a server's model
    path is looked up there. Relative paths of the file are looked up beside it, then in the working directory.
    ``DeploymentError`` names ``file:line``, the field, what is wrong and what to write instead.
    """
    source = read_yaml(path)
    return deployment_from(source.content, marks=source.marks, folder=Path(path).parent, model_dir=model_dir)


def deployment_from(
    content: Mapping[str, Any],
    *,
    marks: SourceMarks | None = None,
    folder: str | Path = ".",
    model_dir: str | None = None,
) -> Deployment:
    """A deployment from the content of a deployment file; ``marks`` say where each value was written."""
    marks = marks or {}
    form = plain_form(content) or _judged(content, marks)
    line = None if form.launch is None else launch_of_file(form, marks)
    return _Loading(form, line, marks, Path(folder), model_dir).deployment()


def _judged(content: Mapping[str, Any], marks: SourceMarks) -> DeploymentForm:
    from pydantic import ValidationError

    from autotune_planner.deployment.schema import DeploymentForm

    try:
        return DeploymentForm.model_validate(dict(content))
    except ValidationError as error:
        raise_problems(error, marks)


@dataclass(frozen=True)
class _Loading:
    """One file on its way to a :class:`Deployment`."""

    form: DeploymentForm | PlainForm
    line: LaunchLine | None
    marks: SourceMarks
    folder: Path
    model_dir: str | None

    def deployment(self) -> Deployment:
        form = self.form
        gpu = self.gpu()
        model, model_path = self.model()
        return Deployment(
            gpu=gpu,
            model=model,
            model_path=model_path,
            engine=form.engine,
            engine_version=form.engine_version,
            parallel=Parallel(**vars(form.parallel)),
            prefill=Prefill(**vars(form.prefill)),
            decode=self.decode(),
            disaggregation=form.disaggregation,
            speculative=Speculative(**vars(form.speculative)),
            draft_model=self.draft_model(),
            multimodal=self.multimodal(model),
            moe=Moe(**vars(form.moe)),
            flags=self.flags(),
            launch=self.line.flags if self.line else None,
            kv_token_capacity=form.kv_token_capacity,
            autotune_extend=self.autotune_extend(),
            env=self.env(),
            traffic=self.traffic(),
            marks=self.marks,
        )

    def gpu(self) -> Gpu:
        if not isinstance(self.form.gpu, str):
            return gpu_of_form(self.form.gpu)
        with self.placed("gpu"):
            return load_gpu(self.form.gpu)

    def model(self) -> tuple[Model, str]:
        """The model, and its path as the server is given it."""
        given, path = self.form.model, self.form.model_path or self.in_launch("model_path")
        if given is None:
            return self.model_at_path(path)
        with self.placed("model"):
            if not isinstance(given, str):
                return models.model_from_config(given), path or self.needed_model_path()
            profile = models.find_profile(given)
            if profile is not None:
                return models.profile_model(profile), path or models.hf_id(profile)
            found = self.find(given)
            if found is None:
                raise models.unknown_model(given)
            return models.load_model(found), path or self.folder_of(given, found)

    def model_at_path(self, path: str | None) -> tuple[Model, str]:
        if path is None:
            raise self.error((), "model is missing", "missing-field", "add model: qwen3-30b-a3b")
        with self.placed("model_path"):
            found = self.find(path)
            if found is not None:
                return models.load_model(found), path
            if (profile := models.profile_of_hf_id(path)) is not None:
                return models.profile_model(profile), path
        raise self.error(
            ("model_path",),
            f"model_path {shown(path)} is not on this machine, and there is no model: to describe it",
            "unknown-model",
            models.profile_hint(path) + ", or model: DIR, a folder with its config.json",
        )

    def folder_of(self, written: str, found: Path) -> str:
        """The model folder as written, the default of ``model_path``."""
        if found.is_dir():
            return written
        if found.name == models.CONFIG_FILE:
            return os.path.dirname(written) or "."
        return self.needed_model_path()

    def needed_model_path(self) -> str:
        raise self.error(
            ("model",),
            "model_path is missing; it is part of the server's cache key",
            "missing-field",
            "add model_path: as the server is given it, such as /models/Qwen3-30B-A3B",
        )

    def draft_model(self) -> Model | None:
        path = self.form.speculative.draft_model_path or self.in_launch("speculative_draft_model_path")
        if path is None:
            return None
        with self.placed("speculative", "draft_model_path"):
            found = self.find(path)
            if found is not None:
                return models.load_model(found)
            profile = models.profile_of_hf_id(path)
            return None if profile is None else models.profile_model(profile)

    def find(self, path: str) -> Path | None:
        """Where a model path is on this machine: in ``model_dir``, beside the deployment file, or as it stands."""
        last = path.rstrip("/").rpartition("/")[2]
        places = [Path(self.model_dir, last)] if self.model_dir is not None and last else []
        return next((place for place in (*places, self.folder / path, Path(path)) if os.path.exists(place)), None)

    def multimodal(self, model: Model) -> bool:
        part = models.other_modality(model)
        given = self.form.multimodal
        if given is not None and given != (part is not None):
            has = f"has {part}" if part else "has neither an image nor an audio nor a video part"
            raise self.error(
                ("multimodal",),
                f"multimodal is {shown(given)}, but the model's configuration {has}",
                "contradiction",
                "leave the line out, or name the other model",
            )
        return part is not None

    def autotune_extend(self) -> bool | None:
        extend, variable = self.form.autotune.extend, self.env().get(EXTEND_VARIABLE)
        if extend is None or variable is None or _TRUTH.get(variable.lower()) is extend:
            return extend
        raise self.error(
            ("autotune", "extend"),
            f"autotune.extend is {shown(extend)}, but {EXTEND_VARIABLE} is {shown(variable)}"
            + (self.at("env", EXTEND_VARIABLE) or self.at("launch")),
            "disagreement",
            "keep one of the two lines",
        )

    def flags(self) -> dict[str, Any]:
        """Server flags without a field here; with a launch line, all that it gives."""
        given = {name: value for name, value in self.form.flags.items() if value is not None}
        in_line = self.line.values if self.line else {}
        return {**given, **{name: value for name, value in in_line.items() if name != "model_path"}}

    def env(self) -> dict[str, str]:
        return {**self.form.env, **(self.line.env if self.line else {})}

    def in_launch(self, argument: str) -> str | None:
        return self.line.values.get(argument) if self.line else None

    def decode(self) -> Decode:
        form = self.form.decode
        sizes = form.cuda_graph_bs_decode
        return Decode(
            max_running_requests=form.max_running_requests,
            cuda_graph_max_bs_decode=form.cuda_graph_max_bs_decode,
            cuda_graph_bs_decode=None if sizes is None else tuple(sizes),
        )

    def traffic(self) -> Traffic:
        form = self.form.traffic
        if form.histogram is not None:
            from autotune_planner.deployment.traffic import read_histogram  # few deployments have one

            place = self.histogram(form.histogram)
            return Traffic(histogram=place, rows=read_histogram(place))
        return Traffic(extend_lens=None if form.extend_lens is None else tuple(form.extend_lens))

    def histogram(self, path: str) -> str:
        place = self.folder / path
        if not os.path.isfile(place):
            raise self.error(
                ("traffic", "histogram"),
                f"traffic.histogram {shown(path)} is not a file",
                "file-not-found",
                f"a path relative to {self.folder}, or an absolute one",
            )
        return str(place)

    @contextmanager
    def placed(self, *path: str) -> Iterator[None]:
        """Errors inside that say no place get the place of this field."""
        try:
            yield
        except DeploymentError as error:
            error.where = error.where or mark_of(path, self.marks)
            raise

    def error(self, path: tuple[str, ...], message: str, code: str, hint: str) -> DeploymentError:
        return DeploymentError(message, code=code, where=mark_of(path, self.marks), hint=hint)

    def at(self, *path: str) -> str:
        mark = self.marks.get(path)
        return f" at {mark}" if mark else ""
