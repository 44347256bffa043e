"""Words by which the text of a program is searched for what depends on the number of its rank."""

from __future__ import annotations

import re

#: Variables that say which rank a process is.
VARIABLES = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "SLURM_PROCID", "SLURM_LOCALID")
    + ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "HOSTNAME")
)
#: Names of variables, attributes and functions that hold or give a rank, or say whether it is the first, and of what
#: does other work on each.
RANK_NAME = re.compile(
    r"(?:.*_)?(?:rank|rank_id|process_index|current_device|get_coordinate|process_group_ranks)$"
    r"|gethostname$|NON_GROUP_MEMBER$|ZeroRedundancyOptimizer$"
    r"|is_(?:local_)?(?:main|master|first|last|world|global|rank|pipeline).*"
    r"|(?:.*_)?(?:master|main)_process$"
)
#: What seeds a generator. Of one that is seeded with a rank every rank draws other numbers.
SEEDS = frozenset(
    ("manual_seed", "manual_seed_all", "seed", "default_rng", "Random", "RandomState")
)
#: What draws a number on the host, of Python's or NumPy's generators.
DRAWS = frozenset(
    ("randint", "randrange", "choice", "choices", "sample", "random", "uniform", "integers")
    + ("gauss", "normal", "normalvariate", "rand", "randn", "poisson", "geometric", "binomial")
    + ("getrandbits", "triangular", "betavariate", "expovariate", "lognormvariate", "exponential")
)
#: What reads a number that PyTorch drew.
READS_DRAWN = frozenset(("item", "tolist", "int"))
#: What of PyTorch draws, beside `DRAWS`.
DRAWS_TENSORS = frozenset(
    ("randperm", "multinomial", "bernoulli", "normal_", "uniform_", "random_")
)
#: What takes a rank and does the same work on each.
TAKES_RANK = frozenset(
    ("set_device", "set_device_index", "device", "cuda", "to", "device_count")
    + ("fork_rng", "init_process_group", "DistributedSampler")
    + ("StatefulDistributedSampler", "DistributedDataParallel", "DDP", "barrier", "Generator")
    + ("get_device_name", "get_device_properties", "synchronize", "destroy_process_group")
    + ("set_epoch", "device_index", "device_mesh", "device_module", "mem_get_info", *SEEDS)
)
#: Arguments that say on which device, or seed, of whatever function.
DEVICE_ARGUMENTS = frozenset(
    ("device", "device_id", "device_ids", "output_device", "map_location", "seed")
)
#: What says or writes something: what it returns does not matter.
SAYS = frozenset(
    ("print", "pprint", "info", "debug", "warning", "warn", "error", "log", "critical", "exception")
    + ("write", "flush", "close", "makedirs", "mkdir", "set_description", "set_postfix", "setLevel")
    + ("add_scalar", "append", "basicConfig", "getLogger", "reset_peak_memory_stats")
)
#: What calculates on the host, or asks for a number: a rank may do it alone. Of a rank it makes
#: something that depends on the rank.
CALCULATES = frozenset(
    ("format", "join", "len", "str", "int", "float", "bool", "round", "range", "enumerate", "zip")
    + ("repr", "get", "getenv", "pop", "max", "min", "divmod", "abs", "sum", "isinstance", "sorted")
    + ("time", "perf_counter", "strftime", "now", "items", "keys", "values", "hasattr", "getattr")
    + ("strip", "split", "replace", "rjust", "ljust", "lower", "upper", "startswith", "endswith")
    + ("open", "exists", "isdir", "isfile", "dirname", "basename", "Path", "tqdm", "numel", "size")
    + ("parameters", "named_parameters", "get_last_lr", "get_rank", "get_world_size")
    + ("memory_stats", "memory_allocated", "max_memory_allocated")
    + ("memory_reserved", "max_memory_reserved")
)
#: What reads a loss: work of the device, but too little to matter.
READS = frozenset(
    ("item", "detach", "cpu", "numpy", "tolist", "mean", "stack", "elapsed_time", "clone")
)
QUIET = SAYS | CALCULATES | READS | {"get_device_name", "mem_get_info", "get_device_properties"}
