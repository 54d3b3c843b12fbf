//! What crosses from the kernel programs to the agent.
#![no_std]
