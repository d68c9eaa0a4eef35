"""The part of a record about images that the shipped model flags."""

from pydantic import Field

from lmd.scoring.estimates import Estimate, Plain


class NoveltyInfo(Plain):
    """Images that the shipped model flags as unlike the training images."""

    above: float = Field(
        description="share of the validation images that are nearer than the threshold"
    )
    threshold: float = Field(description="an image farther from the training images is flagged")
    images: int = Field(description="validation images that gave the threshold")
    flagged: Estimate | None = Field(
        default=None, description="share of the test images that are flagged: false flags"
    )
