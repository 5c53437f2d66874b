"""Inference services: from what pods serve to the share that each of them needs, and how many there should be.

Pure: load windows, GPU time per request, the stages up and down, how GPUs are divided among pods that ask for more
than their templates, and who lends to whom in an update. The scheduler reads the load and carries decisions out.
"""
