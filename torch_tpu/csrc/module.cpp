// torch_tpu._C
#include <pybind11/pybind11.h>

#include "kernel.h"
#include "metrics.h"
#include "registration.h"

PYBIND11_MODULE(_C, m) {
  torch_tpu::bind_metrics(m);
  torch_tpu::bind_kernels(m);
  torch_tpu::register_device(m);
  torch_tpu::register_kernels();
}
