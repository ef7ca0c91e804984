"""The dense baselines: MPI_Allreduce as the MPI chooses, and forced to its ring algorithm in the same process.

The default is not always the MPI's best: on paced links it loses up to 40 % of the link to a ring. A speed-up is
therefore quoted over the better of the two. How a ring is forced differs:

- Open MPI reads `coll_tuned_allreduce_algorithm` (4 is ring) when a communicator is made, if dynamic rules are on. So
  the variables are set while one communicator is duplicated and put back after it; the default one never sees them.
  `coll_tuned_priority` is raised too, since other components (HAN, from version 5) take the allreduce otherwise.
  Open MPI 4 wants dynamic rules before MPI_Init and lets only the algorithm be changed afterwards.
- MPICH reads its variables at every call; they are set around the calls, outside the timed region.
"""

import contextlib
import os

from gqallreduce.cli.control import Control, Unavailable

DEFAULT, RING = "MPI_Allreduce", "MPI_Allreduce (ring)"
DYNAMIC_RULES = "coll_tuned_use_dynamic_rules"


def allow_ring():
    """Lets Open MPI 4 change its allreduce later; to be called before MPI_Init.

    Without a forced algorithm, dynamic rules leave each collective to the same fixed decision as before.
    """
    os.environ.setdefault(f"OMPI_MCA_{DYNAMIC_RULES}", "1")


class Dense:
    """MPI_Allreduce of float32 in place over one communicator. `with dense.active():` surrounds its calls."""

    dense, feedback = True, False

    def __init__(self, name, comm, active=contextlib.nullcontext):
        self.name = name
        self.active = active
        self._comm = comm

    def __call__(self, buffer):
        from mpi4py import MPI

        self._comm.Allreduce(MPI.IN_PLACE, buffer)


def baselines(comm):
    """(list of Dense, how the ring is forced or why there is none). Collective: all ranks get the same answer."""
    default = Dense(DEFAULT, comm)
    try:
        ring, how = _ring(comm)
        return [default, ring], how
    except Unavailable as reason:
        return [default], f"no forced ring, so speed-ups are over the MPI's default alone: {reason}"


def _ring(comm):
    from mpi4py import MPI

    vendor = MPI.get_vendor()[0]
    if vendor not in VARIABLES:
        raise Unavailable(f"it is not known how to tell {vendor}")
    problem = ""
    try:
        control = Control(MPI.__file__)
        wanted = VARIABLES[vendor](control)
        with control.values(wanted):  # does it let itself be told?
            pass
    except Unavailable as reason:
        problem = str(reason)
    problems = [text for text in comm.allgather(problem) if text]
    if problems:
        raise Unavailable(problems[0])
    how = ", ".join(f"{variable} = {value}" for variable, value in wanted.items())
    if vendor == "MPICH":
        return Dense(RING, comm, lambda: control.values(wanted)), f"ring forced by {how} around its calls"
    with control.values(wanted):
        return Dense(RING, comm.Dup()), f"ring forced by {how} while its communicator was made"


def _open_mpi(control):
    wanted = {DYNAMIC_RULES: 1, "coll_tuned_allreduce_algorithm": 4}
    with contextlib.suppress(Unavailable), control.values({"coll_tuned_priority": 100}):
        wanted["coll_tuned_priority"] = 100
    return wanted


def _mpich(control):
    algorithm, device = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "MPIR_CVAR_DEVICE_COLLECTIVES"
    return {algorithm: control.choice(algorithm, "ring"), device: control.choice(device, "none")}


VARIABLES = {"Open MPI": _open_mpi, "MPICH": _mpich}
