"""What each MPI is told in a bed of bench/netbed, so that ranks of different hosts speak over eth0 alone."""

import os
import re
import shutil

# For everything in a bed: what one MPI reads is nothing to another.
VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Not UCX's shared memory, which joins all processes of one kernel past the links. MPICH has its own within a host.
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}
RECOVERY = {  # what leaves other ranks alone when one is killed; the second option is that of MPICH's Hydra
    "Open MPI 4": "--enable-recovery",
    "Open MPI 5": "--with-ft ulfm",
    "MPICH": "-disable-auto-cleanup",
}


class NotKnown(Exception):
    """There is no mpirun, or one that it is not known how to tell; says which."""


def find_mpirun(program):
    """The mpirun beside the program, which then belongs to its MPI, or else that of PATH."""
    beside = os.path.dirname(shutil.which(program) or "")
    mpirun = shutil.which("mpirun", path=f"{beside}:{os.environ['PATH']}" if beside else None)
    if mpirun is None:
        raise NotKnown(f"no mpirun, neither beside {program} nor in PATH: install an MPI, or give --no-mpi")
    return mpirun


def kind_of(version):
    """Which MPI it is, by what its mpirun prints for --version."""
    if "HYDRA" in version:
        return "MPICH"
    found = re.search(r"\(Open MPI\) (\d+)", version)
    if found is None:
        raise NotKnown(f"an mpirun of neither Open MPI nor MPICH: {version[:60]!r}")
    return "Open MPI 4" if int(found[1]) < 5 else "Open MPI 5"


def words_before(kind, mpirun, hosts, ranks_per_host, ssh):
    """The words that go before the program, so that it runs on all hosts and speaks over eth0 alone.

    `ssh` is what mpirun calls to start something on another host.
    """
    slots = ",".join(f"h{number}:{ranks_per_host}" for number in range(hosts))
    ranks = ["-n", str(hosts * ranks_per_host)]
    if kind == "MPICH":
        return [mpirun, "-launcher", "ssh", "-launcher-exec", str(ssh), "-iface", "eth0", "-hosts", slots, *ranks]
    shared = "vader" if kind == "Open MPI 4" else "sm"
    transports = "tcp,self" if ranks_per_host == 1 else f"tcp,self,{shared}"
    # A rank that waits must yield: it shares its core with ranks that compute.
    values = {"pml": "ob1", "btl": transports, "btl_tcp_if_include": "eth0", "mpi_yield_when_idle": "1"}
    if kind == "Open MPI 4":
        flag, start = "--mca", {"plm_rsh_agent": str(ssh), "oob_tcp_if_include": "eth0"}
    else:
        flag, start = "--prtemca", {"plm_ssh_agent": str(ssh), "prte_if_include": "eth0"}
    words = [mpirun, "--host", slots, *ranks, "--bind-to", "none"]
    for name, value in (values | start).items():
        words += [flag if name in start else "--mca", name, value]
    return words
