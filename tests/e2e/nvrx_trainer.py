"""A trainer that only NVIDIA's client reports for, by the sections of Megatron's `--enable-ft-package`."""

import sys
import time

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
client.start_section("setup")
client.end_section("setup")
for _ in range(int(sys.argv[1])):
    client.start_section("step")
    time.sleep(0.2)
    client.end_section("step")
client.start_section("checkpointing")
time.sleep(5)
client.end_section("checkpointing")
client.shutdown_workload_monitoring()
