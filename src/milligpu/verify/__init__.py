"""`milligpu verify`: does what milligpu promises hold on this machine's GPU?

`suite` lists the checks and runs them on the engine of `checks`. A check runs programs under `milligpu run`
(`runner`), takes readings, and lets `judge`, which is pure, decide. `compute` measures time, `memory` bytes,
`driver` what CUDA programs see, `frameworks` runs PyTorch and others. `programs/` are these programs: plain Python
files that need nothing of milligpu, because the Python of a framework is often another one.

`privacy` removes from a report what identifies people and machines, and `html` draws it; the report's format is in
`wire`.
"""
