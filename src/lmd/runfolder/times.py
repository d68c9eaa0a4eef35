"""What a training cost, from the times in its record."""

from lmd.runfolder.record import Record


def processor_time(stage: int) -> str:
    """The key of a stage's processor time in ``Record.timings``; stages count from 1."""
    return f"stage {stage} processor time"


def training_minutes(record: Record) -> float:
    """Processor minutes of all stages and processes, or GPU minutes.

    A record without processor times has elapsed times: they count for each thread.
    """
    used = record.machine.processes
    spent = [record.timings.get(processor_time(i + 1)) for i in range(len(record.stages))]
    known = [seconds for seconds in spent if seconds is not None]
    if len(known) == len(spent):
        return used * sum(known) / 60
    if record.machine.device == "cpu":
        used *= record.machine.threads
    return used * sum(stage.seconds for stage in record.stages) / 60
