/* In a pod with a remote share: asks the GPU server for the session that the pod's grant names.
 *
 * Admission mounted a directory with the pod's token and with the address and the CA of the server, which the
 * scheduler wrote when it bound the pod. */
#pragma once
#include "wire.h"

enum { ATTACH_ADDRESS = 320 };

struct attached_session {
    char server[ATTACH_ADDRESS];
    char session[SESSION_SIZE];
    char key[2 * KEY_SIZE + 1];
};

int attach_pod(const char *folder, struct attached_session *attached); /* 0, or -1 after a line on stderr */
