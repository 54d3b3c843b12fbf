//! Where the servers listen.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use socket2::{Domain, Socket, Type};

/// Connections that wait to be accepted: as many as the standard library lets wait.
const BACKLOG: i32 = 128;

/// Binds an address. 0.0.0.0 stands for all of this machine's addresses, those of IPv6 too: in a cluster whose first
/// family is IPv6, the kubelet and Prometheus ask at those. A client of IPv4 is then seen with its address mapped into
/// IPv6.
///
/// # Errors
/// The address is in use, or is none of this machine's.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, both_families)
}

/// Whether `listen` would be given an address, or finds it in use. It listens to nothing, so that an agent which starts
/// meanwhile is not refused.
///
/// # Errors
/// The address is none of this machine's, or may not be bound.
pub fn is_free(address: SocketAddr) -> io::Result<bool> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    match socket.bind(&address.into()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(error),
    }
}

fn listen_with(
    address: SocketAddr,
    both: impl FnOnce(u16) -> io::Result<TcpListener>,
) -> io::Result<TcpListener> {
    if address.ip() != IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        return TcpListener::bind(address);
    }
    match both(address.port()) {
        // The kernel has no IPv6, or it is switched off.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
            ) =>
        {
            TcpListener::bind(address)
        }
        bound => bound,
    }
}

/// `[::]`, whatever `net.ipv6.bindv6only` says.
fn both_families(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    // As the standard library does: an agent takes the port of the one before it.
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, net::TcpStream};

    use super::*;

    fn any() -> SocketAddr {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    }

    /// Whether a client reaches the listener at this address of the machine.
    fn is_reached(listener: &TcpListener, at: IpAddr) -> bool {
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((at, port)).is_ok()
    }

    #[test]
    fn all_addresses_are_those_of_both_families() {
        let listener = listen(any()).unwrap();
        assert!(is_reached(&listener, Ipv4Addr::LOCALHOST.into()));
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
            println!("SKIPPED listen: this machine has no ::1");
            return;
        }
        assert!(is_reached(&listener, Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn without_ipv6_all_addresses_are_those_of_ipv4() {
        for error in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
            let refused = |_| Err(io::Error::from_raw_os_error(error));
            let listener = listen_with(any(), refused).unwrap();
            assert_eq!(listener.local_addr().unwrap().ip(), any().ip());
            assert!(is_reached(&listener, Ipv4Addr::LOCALHOST.into()));
        }
        // Any other error is returned.
        let refused = |_| Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        let error = listen_with(any(), refused).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_test_of_an_address_takes_it_from_no_agent() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(!is_free(address).unwrap());
        drop(listener);
        assert!(is_free(address).unwrap());
        listen(address).unwrap();
        let error = is_free(([192, 0, 2, 1], 1).into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn one_address_is_that_address() {
        let never = |_| unreachable!("one address was asked for");
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)] {
            let listener = listen_with((address, 0).into(), never).unwrap();
            assert_eq!(listener.local_addr().unwrap().ip(), address);
        }
    }
}
