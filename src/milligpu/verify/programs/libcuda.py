"""Which libcuda a CUDA program gets, and what it sees of the GPU."""

from driver import answer, loaded, mapped, memory, start

start()
answer(loaded=loaded(), mapped=mapped(), total=memory()[1])
