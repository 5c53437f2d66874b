/* The type of the profiler's functions; the wheel with cuda.h leaves this header out. */
#pragma once
typedef int CUoutput_mode;
