"""The log_softmax of 45 numbers by tinygrad, compared with numpy's."""

import json
import os

os.environ["DEV"] = "CUDA"

import numpy
from tinygrad import Tensor

numbers = numpy.linspace(-3, 3, 45, dtype=numpy.float32)
expected = numbers - numpy.log(numpy.exp(numbers).sum())
found = Tensor(numbers.tolist(), device="CUDA").log_softmax().numpy()
print(json.dumps({"log_softmax": bool(numpy.allclose(found, expected, atol=1e-5))}))
