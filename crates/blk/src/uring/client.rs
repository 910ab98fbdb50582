//! Streams of clients to other servers. They block the thread, within a time limit, until a core serves them.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::clock::now_ns;
use super::net::tune_tcp;

/// A connected stream. Reads and writes fail with `TimedOut` from the deadline on, however slowly bytes arrive.
#[derive(Debug)]
pub struct ClientStream {
    fd: OwnedFd,
    /// On the clock of `Env::now_ns`.
    deadline_ns: u64,
}

impl ClientStream {
    /// Connects to a Unix socket within `limit_us`, which is also the deadline of what follows.
    ///
    /// # Errors
    /// Those of the system; `TimedOut` if the server accepts nothing.
    pub fn connect_unix(path: &Path, limit_us: u64) -> io::Result<ClientStream> {
        let address = SocketAddrUnix::new(path)?;
        let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let stream = ClientStream::new(fd, limit_us);
        // The limit of sends is also that of a wait for a place in the server's queue.
        set_socket_timeout(&stream.fd, Timeout::Send, Some(stream.left()?))?;
        net::connect(&stream.fd, &address).map_err(timed_out)?;
        Ok(stream)
    }

    /// Connects to "HOST:PORT" within `limit_us` for each address of the host; the last one sets the deadline. A vanished
    /// peer is detected after two minutes.
    ///
    /// # Errors
    /// Those of the last address, or of the resolution of the name.
    pub fn connect_tcp(address: &str, limit_us: u64) -> io::Result<ClientStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, Duration::from_micros(limit_us)) {
                Ok(stream) => {
                    let stream = ClientStream::new(stream.into(), limit_us);
                    tune_tcp(&stream.fd);
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Wraps a connected stream, with a deadline in `limit_us`.
    pub fn new(fd: OwnedFd, limit_us: u64) -> ClientStream {
        let mut stream = ClientStream { fd, deadline_ns: 0 };
        stream.limit(limit_us);
        stream
    }

    /// Sets the deadline to `limit_us` from now.
    pub fn limit(&mut self, limit_us: u64) {
        self.deadline_ns = now_ns().saturating_add(limit_us.saturating_mul(1000));
    }

    /// Returns the stream without a deadline, for [`Socket::connected`](crate::socket::Socket::connected).
    ///
    /// # Errors
    /// Those of the system.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        set_socket_timeout(&self.fd, Timeout::Recv, None)?;
        set_socket_timeout(&self.fd, Timeout::Send, None)?;
        Ok(self.fd)
    }

    fn left(&self) -> io::Result<Duration> {
        match self.deadline_ns.saturating_sub(now_ns()) / 1000 {
            0 => Err(timed_out(Errno::AGAIN)),
            left_us => Ok(Duration::from_micros(left_us)),
        }
    }
}

/// A call that reached a socket's time limit ends with `EAGAIN`.
fn timed_out(errno: Errno) -> io::Error {
    match errno {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "no answer within the time limit"),
        other => other.into(),
    }
}

impl Read for ClientStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        set_socket_timeout(&self.fd, Timeout::Recv, Some(self.left()?))?;
        net::recv(&self.fd, buf, RecvFlags::empty()).map(|(read, _)| read).map_err(timed_out)
    }
}

impl Write for ClientStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        set_socket_timeout(&self.fd, Timeout::Send, Some(self.left()?))?;
        net::send(&self.fd, buf, SendFlags::NOSIGNAL).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_silent_peer_and_a_slow_one_reach_the_deadline() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut stream = ClientStream::new(here.into(), 50_000);
        there.write_all(b"ab").unwrap();
        let mut bytes = [0; 2];
        stream.read_exact(&mut bytes).unwrap();
        let error = stream.read_exact(&mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        there.write_all(b"late").unwrap();
        assert_eq!(stream.read(&mut bytes).unwrap_err().kind(), io::ErrorKind::TimedOut, "its time is over");
        stream.limit(1_000_000);
        assert_eq!(stream.read(&mut bytes).unwrap(), 2);
        let full = stream.write_all(&vec![0; 32 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::TimedOut);
    }
}
