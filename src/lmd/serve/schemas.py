"""What the API takes and gives, for checking and for its description, and its errors (RFC 9457)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

PROBLEM_TYPE = "application/problem+json"
# The status and title of each kind; the page of the API lists them.
KINDS = {
    "bad-request": (400, "The request cannot be understood"),
    "bad-name": (400, "The file name is not allowed"),
    "no-token": (401, "A token is needed"),
    "other-site": (403, "Requests from other web sites are refused"),
    "not-found": (404, "There is no such address or model"),
    "wrong-method": (405, "The address does not have this method"),
    "slow-upload": (408, "The request took too long to arrive"),
    "no-heat-maps": (409, "This model has no heat maps"),
    "too-large": (413, "The upload is too large"),
    "wrong-type": (415, "The upload is not of an allowed type"),
    "wrong-host": (421, "The server does not answer for this host name"),
    "bad-image": (422, "The image cannot be read"),
    "too-many-pixels": (422, "The image is too large when it is decoded"),
    "too-many-frames": (422, "The image has too many frames"),
    "bad-options": (422, "The options are not valid"),
    "failed": (500, "The server failed"),
    "busy": (503, "The server is busy"),
}


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Options(BaseModel):
    """How probabilities become decisions; see the options of `lmd predict`."""

    model_config = ConfigDict(extra="forbid")

    prevalence: Literal["uniform", "training"] | dict[str, Share] | None = Field(
        default=None,
        description="The mix of classes: uniform, training, or a share for every class.",
    )
    costs: dict[str, Cost | dict[str, Cost]] | None = Field(
        default=None,
        description="The cost of a mistake for every class, or a table of true by predicted.",
    )
    coverage: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = Field(
        default=None, description="The probability with which the set contains the true class."
    )
    refer_above: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Refer images with more classes in their set; needs coverage."
    )
    picture: bool = Field(
        default=False, description="Return the image as it was read, at most 768 pixels."
    )


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class Problem(Exception):
    """A request that cannot be answered; ``detail`` says what to do and shows nothing secret."""

    def __init__(self, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind, self.headers = kind, headers or {}
        status, title = KINDS[kind]
        self.details = ProblemDetails(
            type=f"/docs#{kind}", title=title, status=status, detail=detail
        )

    def response(self) -> JSONResponse:
        """Return the answer to the request."""
        details = self.details
        return JSONResponse(details.model_dump(), details.status, self.headers, PROBLEM_TYPE)


def busy(why: str, seconds: int = 1) -> Problem:
    """Return the problem of a server without room; ``seconds`` says when to try again."""
    return Problem("busy", f"{why}: try again in {seconds} s.", {"Retry-After": str(seconds)})


class Answer(BaseModel):
    """The answer for one image; fields that were not asked for are null."""

    image: str = Field(description="The name of the uploaded file.")
    predicted: str
    probability: float
    probabilities: dict[str, float]
    set: list[str] | None = Field(default=None, description="The prediction set, with a coverage.")
    refer: bool | None = Field(default=None, description="Whether a person should decide.")
    unlike_training: bool | None = Field(default=None, description="Null if the model cannot tell.")
    picture: str | None = Field(default=None, description="A data URI.")


class Row(BaseModel):
    """One image of a batch: its answer, or why there is none."""

    image: str
    answer: Answer | None = None
    problem: ProblemDetails | None = None


class Rows(BaseModel):
    """The images of a batch, in the order in which they were sent."""

    model: str
    rows: list[Row]


class Heat(BaseModel):
    """Where the evidence for a class is: a transparent PNG of the picture's size, and its peak."""

    name: str
    probability: float
    heat: str = Field(description="A data URI.")
    peak: tuple[float, float] = Field(description="As fractions of width and height.")


class Case(BaseModel):
    """A training image with similar features; its number counts from 0 in the training part."""

    label: str
    distance: float
    number: int


class Explained(BaseModel):
    """Heat maps of the most probable classes, and the nearest training cases."""

    model: str
    image: str
    picture: str = Field(description="The image as a data URI.")
    classes: list[Heat]
    neighbours: list[Case] | None = Field(
        default=None, description="Null if the run did not keep them."
    )
    unlike_training: bool | None = None


class ClassInfo(BaseModel):
    """A class and its number of training images."""

    name: str
    training_images: int
    training_share: float
    validation_images: int | None = Field(default=None, description="Null if it is not known.")


class ModelInfo(BaseModel):
    """The description of a model."""

    name: str
    method: str
    backbone: str
    engine: Literal["torch", "onnxruntime"] = Field(description="What computes predictions.")
    image_size: int
    temperature: float
    prior: Literal["uniform", "training"] | None = Field(
        description="The mix of classes that the probabilities answer for, if it is known."
    )
    classes: list[ClassInfo]
    coverage: bool = Field(description="Whether prediction sets are possible.")
    explanations: bool = Field(description="Whether heat maps are possible.")
    neighbours: bool = Field(description="Whether the nearest training cases are known.")
    unlike_training: bool = Field(description="Whether images unlike training are flagged.")
    lmd_version: str = Field(description="The version that wrote the model.")
    card: str | None = Field(default=None, description="The model card, as Markdown.")


class Health(BaseModel):
    """The server answers, and its models are loaded."""

    status: Literal["ok"] = "ok"
    models: list[str]


class Version(BaseModel):
    """The version of the server."""

    lmd: str
