//! The one network card, and the loopback, set up by rtnetlink messages (linux/netlink.h, rtnetlink.h, if_link.h, if_addr.h).

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

use super::Result;
use crate::wire::HOST;

/// Address that QEMU's user network expects.
pub(super) const ADDRESS: [u8; 4] = [10, 0, 2, 15];
const PREFIX_BITS: u8 = 24;
/// Interval of the probes of an idle connection, and how many may stay without an answer: the host may be busy.
const PROBE: Duration = Duration::from_secs(2);
const PROBES_MAX: u32 = 60;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
const IFA_LOCAL: u16 = 2;
/// Size of the length and the type in front of an attribute's value.
const ATTRIBUTE_HEADER: u16 = 4;

/// Connects to the host. The connection is probed while it is idle: in another QEMU, which does not know it, it ends.
pub(super) fn control(port: u16) -> Result<TcpStream> {
    let control = TcpStream::connect((HOST, port))?;
    control.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&control, true)?;
    sockopt::set_tcp_keepidle(&control, PROBE)?;
    sockopt::set_tcp_keepintvl(&control, PROBE)?;
    sockopt::set_tcp_keepcnt(&control, PROBES_MAX)?;
    Ok(control)
}

/// Turns an interface on. Returns its number.
pub(super) fn link_up(name: &str) -> Result<u32> {
    let index: u32 = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?.trim().parse()?;
    // ifinfomsg: family, padding, type, index, flags, the flags to change.
    let mut link = vec![0; 4];
    link.extend(index.to_ne_bytes());
    link.extend(IFF_UP.to_ne_bytes());
    link.extend(IFF_UP.to_ne_bytes());
    request(RTM_NEWLINK, &link)?;
    Ok(index)
}

pub(super) fn up() -> Result<()> {
    let index = link_up("eth0")?;
    // ifaddrmsg: family, prefix, flags, scope, index; then one attribute.
    let mut address = vec![AF_INET, PREFIX_BITS, 0, 0];
    address.extend(index.to_ne_bytes());
    address.extend((ATTRIBUTE_HEADER + ADDRESS.len() as u16).to_ne_bytes());
    address.extend(IFA_LOCAL.to_ne_bytes());
    address.extend(ADDRESS);
    request(RTM_NEWADDR, &address)
}

/// Sends one message and waits for its acknowledgement.
fn request(kind: u16, body: &[u8]) -> Result<()> {
    const HEADER: usize = 16;
    let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    // Protocol 0 is NETLINK_ROUTE.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;

    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    let answer = &answer[..length];
    // An nlmsgerr follows the header: 0, or a negative errno.
    let error = answer.get(HEADER..HEADER + 4).ok_or("a short answer of rtnetlink")?;
    let error = i32::from_ne_bytes(error.try_into()?);
    let is_answer = answer[4..6] == NLMSG_ERROR.to_ne_bytes();
    if is_answer && error == 0 {
        Ok(())
    } else {
        Err(format!("rtnetlink message {kind}: error {error}").into())
    }
}
