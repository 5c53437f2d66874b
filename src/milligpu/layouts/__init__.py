"""What the GPUs of a cluster look like by day and by night, and the way from one to the other.

`calendar` says which layout holds when, `layout` what a layout asks of nodes and cards, `plan` which steps lead
there and what they change, `journal` how far they got. All of it is pure: the scheduler service carries it out.
"""
