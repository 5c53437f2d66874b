"""What GPUs and shares did in the past: a bounded file of measurements that needs no other program.

Raw samples are kept for an hour, averages of minutes for a day, averages of hours for 90 days. The file may be lost
at any time: nothing that is granted or enforced depends on it.
"""
