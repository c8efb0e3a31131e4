"""torch runs on this machine: micro-benchmarks that become a hardware profile (docs/measure.md).

The only room that imports torch, and inside functions: nothing else of tfsim needs the extra ``tfsim[measure]``.
"""
