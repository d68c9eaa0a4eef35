"""Relation-aware Representation Learning: stage 1 of LMD (LMD paper, Eq. 3-5).

The student sees each image twice, the teacher (its running average) once. Predictions, the
relations among samples and the relations among channels must agree between the two.
"""

import copy
from contextlib import nullcontext
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from lmd.methods import supervised
from lmd.methods.method import Needs, NonNegative, Settings, Share
from lmd.methods.stage import Batch, Epoch, Stage, Task, Terms
from lmd.model import Model

Gram = Literal["normalised", "raw"]
Divisor = Literal["channels", "samples"]
Direction = Literal["teacher_student", "student_teacher"]
Sampling = Literal["natural", "balanced"]

WITH_RRL = Needs(rrl=True)


class RRLSettings(Settings):
    """Settings of stage 1; the rows refer to ``docs/paper-vs-code.md``."""

    tau: Annotated[NonNegative, "Cross-entropy sees z + tau ln(prior); 0: plain (row 26)."] = 0.0
    ce_view: Annotated[supervised.View, "View; label: the protocol's (rows 1 and 37)."] = "strong"
    ce_sampling: Annotated[Sampling, "How stage 1 draws images (row 38)."] = "balanced"
    average: Annotated[Share, "share of steps to average over (row 39).", Needs(rrl=False)] = 0.0
    warmup: Annotated[Share, "share of all steps with cross-entropy alone (row 2).", WITH_RRL] = 0.2
    gram: Annotated[Gram, "scale of Gram matrices (row 3).", WITH_RRL] = "normalised"
    centre: Annotated[bool, "centre features before the Gram matrices (row 27).", WITH_RRL] = False
    channel_divisor: Annotated[Divisor, "divisor of channel loss (row 4).", WITH_RRL] = "channels"
    kl: Annotated[Direction, "direction of KL divergence (row 5).", WITH_RRL] = "teacher_student"
    lambda_1: Annotated[NonNegative, "weight of the consistency losses (row 6).", WITH_RRL] = 10.0
    relations: Annotated[NonNegative, "share of relations in lambda_1 (row 28).", WITH_RRL] = 1.0
    probabilities: Annotated[NonNegative, "share of KL in lambda_1 (row 28).", WITH_RRL] = 0.5
    sam: Annotated[NonNegative, "Radius of sharpness-aware steps; 0: none (row 29)."] = 0.0
    teacher: Annotated[
        Literal["copy", "own"], "a copy of the student, or with its own head (row 7).", WITH_RRL
    ] = "copy"
    ema_horizon: Annotated[Share | None, "teacher's horizon / all steps (row 7).", WITH_RRL] = 0.3
    ema_decay: Annotated[Share, "teacher's decay without a horizon (row 7).", WITH_RRL] = 0.999
    ema_ramp: Annotated[bool, "let the decay grow from 0 at first (row 7).", WITH_RRL] = True
    keep: Annotated[
        Literal["student", "teacher"],
        "what goes on to stage 2; the teacher of the last epoch (row 30).",
        WITH_RRL,
    ] = "student"


def sampling_weights(sampling: Sampling, counts: Tensor) -> Tensor | None:
    """Return the weight of an image of each class ``(K,)``; ``None`` draws each image once."""
    return supervised.image_weights(counts) if sampling == "balanced" else None


def _gram(z: Tensor, gram: Gram) -> Tensor:
    matrix = z @ z.T
    return F.normalize(matrix) if gram == "normalised" else matrix


def sample_relation_loss(student: Tensor, teacher: Tensor, gram: Gram = "normalised") -> Tensor:
    """Squared difference of the ``B x B`` Gram matrices ``z z^T``, over B; inputs ``(B, C)``.

    LMD paper, Eq. 4 is ``raw``; ``normalised`` scales each row of a Gram matrix to length one.
    """
    return (_gram(student, gram) - _gram(teacher, gram)).square().sum() / len(student)


def channel_relation_loss(
    student: Tensor, teacher: Tensor, gram: Gram = "normalised", divisor: Divisor = "channels"
) -> Tensor:
    """Squared difference of the ``C x C`` Gram matrices ``z^T z``, over C; inputs ``(B, C)``.

    LMD paper, Eq. 5; ``divisor="samples"`` divides by B instead.
    """
    difference = (_gram(student.T, gram) - _gram(teacher.T, gram)).square().sum()
    return difference / student.shape[1 if divisor == "channels" else 0]


def probability_loss(
    student_logits: Tensor, teacher_logits: Tensor, direction: Direction = "teacher_student"
) -> Tensor:
    """Mean over the batch of KL(teacher ‖ student), or the other way round; logits ``(B, K)``.

    LMD paper, Eq. 3, which does not say which way.
    """
    first, second = teacher_logits.log_softmax(1), student_logits.log_softmax(1)
    if direction == "student_teacher":
        first, second = second, first
    return F.kl_div(second, first, reduction="batchmean", log_target=True)


def _full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class RRL(Stage):
    """``L_CE + lambda_1 (L_sample + L_channel + L_prob / 2)``, after a warm-up with CE alone.

    The label loss is ``CE(z + tau ln pi)``, so that the bare logits ``z``, which relations and
    probabilities compare, are free of the class prior ``pi``.

    ``teacher="copy"`` becomes a copy of the student when consistency starts and is averaged from
    then on; it has the student's BatchNorm statistics and runs in ``eval`` mode. ``teacher="own"``
    starts with its own head, is averaged from the first step in its parameters only, and runs in
    ``train`` mode with its own BatchNorm statistics.
    """

    views = ("weak", "strong", "label")
    counts: Tensor

    def __init__(self, model: Model, task: Task, settings: RRLSettings) -> None:
        # The teacher is not trained: it follows.
        super().__init__(model, weights=sampling_weights(settings.ce_sampling, task.class_counts))
        self.settings = settings
        self.register_buffer("counts", task.class_counts, persistent=False)
        self.own = settings.teacher == "own"
        self.model = model
        self.teacher = copy.deepcopy(model)
        if self.own:
            self.teacher.classifier.reset_parameters()
        self.done = self.total = 0  # steps, counted from the start of the stage

    def start_epoch(self, epoch: Epoch) -> None:
        """Count the steps: the warm-up and the teacher's horizon are shares of them."""
        self.done, self.total = epoch.index * epoch.steps, epoch.total * epoch.steps

    def _warmup_steps(self) -> int:
        steps = round(self.settings.warmup * self.total)
        # The teacher starts as a copy of the student, so one that is kept must have started.
        return min(steps, self.total - 1) if self.settings.keep == "teacher" else steps

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of ``z + tau ln pi``: ``(B, K)``, ``(B,)`` → scalar."""
        return supervised.balanced_softmax_loss(logits, labels, self.counts, self.settings.tau)

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Terms ``loss``, ``ce``, ``sample``, ``channel``, ``prob``; the last three 0 at first."""
        if self.done < self._warmup_steps():
            with self.clock("student"):
                ce = self._label_loss_alone(batch)
            zero = torch.zeros_like(ce)
            return {"loss": ce, "ce": ce, "sample": zero, "channel": zero, "prob": zero}
        both = self.settings.ce_view == "both"
        weak, strong = batch.views["weak"], batch.views["strong"]
        view = weak if both else batch.views[self.settings.ce_view]
        with self.clock("student"):
            if view is not strong:
                ce = self.label_loss(self.model(view), batch.labels)
            # Evaluation sees undistorted images: the running statistics are of ``view``.
            with nullcontext() if view is strong else supervised.still_statistics(self.model):
                features = self.model.features(strong)
                logits = self.model.classifier(features)
            if view is strong:
                ce = self.label_loss(logits, batch.labels)
            elif both:
                ce = (ce + self.label_loss(logits, batch.labels)) / 2
        return {"ce": ce} | self._consistency(ce, features, logits, weak)

    def _label_loss_alone(self, batch: Batch) -> Tensor:
        view = self.settings.ce_view
        return supervised.loss_of_views(self.model, self.label_loss, batch, view)["loss"]

    def _consistency(
        self, ce: Tensor, features: Tensor, logits: Tensor, weak: Tensor
    ) -> dict[str, Tensor]:
        self.teacher.train(self.own)
        with self.clock("teacher"), torch.no_grad():
            goal = self.teacher.features(weak)
            goal_logits = self.teacher.classifier(goal)
        settings = self.settings
        # Gram matrices are differences of large sums: never in half precision.
        with self.clock("losses"), torch.autocast(features.device.type, enabled=False):
            z, goal = _full(features), _full(goal)
            if settings.centre:
                z, goal = z - z.mean(0), goal - goal.mean(0)
            sample = sample_relation_loss(z, goal, settings.gram)
            channel = channel_relation_loss(z, goal, settings.gram, settings.channel_divisor)
            prob = probability_loss(_full(logits), _full(goal_logits), settings.kl)
            alike = settings.relations * (sample + channel) + settings.probabilities * prob
            loss = ce + settings.lambda_1 * alike
        return {"loss": loss, "sample": sample, "channel": channel, "prob": prob}

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update of the student, then of the teacher."""
        # An own teacher follows from the first step, a copy from the end of the warm-up.
        since = self.done - (0 if self.own else self._warmup_steps())
        if since == 0 and not self.own:
            self.teacher.load_state_dict(self.model.state_dict())
        if radius := self.settings.sam:
            ce = self._label_loss_alone(*batches)
            terms = supervised.sharp_step(self, self.model, optimizer, radius, ce, *batches)
        else:
            terms = super().step(optimizer, *batches)
        if since >= 0:
            with self.clock("teacher"):
                horizon, limit = self.settings.ema_horizon, self.settings.ema_decay
                if horizon is not None:
                    limit = supervised.horizon_limit(horizon, self.total)
                decay = min(1 - 1 / (since + 1), limit) if self.settings.ema_ramp else limit
                supervised.follow(self.teacher, self.model, decay, buffers=not self.own)
        self.done += 1
        return terms
