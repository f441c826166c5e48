//! Leases, readers, and the driver that performs what the partition machine decides.
