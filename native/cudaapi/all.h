/* The whole driver API: compute, and what it shares with graphics. */
#pragma once
#include <cuda.h>
#include <cudaEGL.h>
#include <cudaGL.h>
#include <vdpau/vdpau.h>

#include <cudaVDPAU.h>

#include "cudaProfiler.h"
