"""Run by itself: what `accelerate launch` would start for these arguments, as one line of JSON.

Accelerate reads its options and configuration files. It loads PyTorch, so this is a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main(words: list[str]) -> None:
    """Print the program, its arguments, processes, hosts, and the variables that are set for it."""
    launch = importlib.import_module("accelerate.commands.launch")
    utils = importlib.import_module("accelerate.utils.launch")
    args, defaults, precision_of_config = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(words)
    )
    hosts, processes, own_rank = args.num_machines or 1, args.num_processes, False
    args.num_processes = processes or hosts
    if args.use_deepspeed:
        fields = list(defaults.deepspeed_config) if defaults else []
        fields += ["mixed_precision"] if precision_of_config else []
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        environment = utils.prepare_deepspeed_cmd_env(args)[1]
        own_rank = hosts > 1 and args.deepspeed_multinode_launcher == "nossh"
    else:
        environment = utils.prepare_multi_gpu_env(args)
    said = {
        "program": args.training_script,
        "arguments": args.training_script_args,
        "processes": processes,
        "hosts": hosts,
        "deepspeed_launcher": own_rank,
        "environment": {k: v for k, v in environment.items() if os.environ.get(k) != v},
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
