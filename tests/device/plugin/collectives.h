#pragma once
#include "paddle/phi/backends/device_ext.h"

namespace testdev {
void set_collectives(C_DeviceInterface* call);
}
