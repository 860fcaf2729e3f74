"""Running emitted modules: loading, building for a device, launching."""
