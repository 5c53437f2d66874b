"""What is measured, as Prometheus has it: samples in, metric families out.

Names have their unit, labels are those of NVIDIA's own exporter, and what is not known is left out: no data is not
0.
"""
