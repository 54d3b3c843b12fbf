//! Policies: what they say, and what the agent does by them.

mod addresses;
mod api;
mod arangodb;
mod cli;
mod definition;
mod embedded;
mod fastpath;
mod gates;
mod gates_tls;
mod limits;
mod object;
mod pause;
mod render;
mod shipped;
mod status;
mod tenants;
