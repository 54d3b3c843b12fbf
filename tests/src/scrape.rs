//! What a running agent says at `/metrics`.

use std::net::{TcpListener, TcpStream};

use crate::{prelude::*, text::number};

/// A free address on loopback, for an agent that takes it at once.
pub fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

/// Has an agent with this configuration listen at a free address, by a field of it such as `metricsAddress`.
pub fn listen(config: &mut Value, field: &str) -> String {
    let address = free_address().expect("an address");
    config[field] = address.as_str().into();
    address
}

/// Gets `/metrics`, and returns the answer with its head.
pub fn metrics(address: &str) -> Result<String> {
    get(address, "/metrics")
}

/// Whether `/metrics` has this line.
pub fn shows(address: &str, line: &str) -> bool {
    metrics(address).is_ok_and(|text| text.lines().any(|shown| shown == line))
}

/// The number that `/metrics` has for a series.
pub fn value(address: &str, series: &str) -> Option<u64> {
    number(&metrics(address).ok()?, series)
}

/// Gets a path, and returns the answer with its head.
pub fn get(address: &str, path: &str) -> Result<String> {
    ask(address, &format!("GET {path}"), "", "")
}

/// Asks with another method, or with further headers and a body, and returns the answer with its head.
pub fn ask(address: &str, request: &str, headers: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SOON))?;
    let head = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all((head + body).as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
