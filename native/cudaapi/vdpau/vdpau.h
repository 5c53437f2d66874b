/* The types of VDPAU that cudaVDPAU.h names: its functions are passed on, so nothing else is needed. */
#pragma once
#include <stdint.h>
typedef uint32_t VdpDevice;
typedef uint32_t VdpVideoSurface;
typedef uint32_t VdpOutputSurface;
typedef int VdpGetProcAddress(VdpDevice device, uint32_t function, void **pointer);
