"""The part of a record about classifiers on frozen features."""

from pydantic import Field

from lmd.scoring.estimates import Estimate, Plain


class Candidate(Plain):
    """One of the classifiers that ``lmd calibrate`` compared on the same frozen features."""

    key: str
    title: str
    chosen: bool = Field(description="whether it is the shipped one")
    settings: dict[str, float] = Field(description="chosen on held-out images")
    held_out: Estimate | None = Field(
        description="balanced accuracy where the choice was made; null if it may know these images"
    )
    test: Estimate | None = Field(description="balanced accuracy of the test part, if there is one")
    worst_class: str | None = Field(description="with the lowest recall, of test or else held out")
    worst_recall: float | None
