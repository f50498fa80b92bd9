"""Which workers a command asks for: processes here, or a Ray cluster."""

from __future__ import annotations

from importlib.util import find_spec

from editor.errors import UsageError
from editor.fanout import Crew, Hands
from editor.progress import Progress


def wants_workers(workers: int | None, ray: str | None) -> bool:
    """Whether anything but this process is to measure."""
    return ray is not None or (workers or 1) > 1


def require_ray(ray: str | None) -> None:
    """Refuse an address where Ray is missing.

    Raises:
        UsageError: it is asked for and not installed.
    """
    if ray is None or find_spec("ray") is not None:
        return
    raise UsageError("--ray needs the package ray", 'pip install "capability-editor[ray]"')


def open_crew(workers: int | None, ray: str | None, device: str, progress: Progress) -> Crew:
    """Workers that are started when they get their first job.

    Args:
        workers: how many; by default one, or on a cluster as many as fit.
        ray: address of a cluster.
        device: where each is to compute.
        progress: hears of a cluster what it has.

    Raises:
        UsageError: the cluster cannot be reached, or has no room.
    """
    hands: Hands
    if ray is None:
        from editor.processes import Processes

        hands = Processes(workers or 1)
    else:
        from editor.cluster import Cluster

        hands = Cluster(ray, workers, gpu=device.startswith("cuda"))
        progress.say(f"Ray cluster {hands.address}: {hands.room}")
    return Crew(hands)
