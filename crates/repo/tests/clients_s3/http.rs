//! Requests and answers of HTTP/1.1, one on each connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Bytes that the head of a request or an answer can have.
const HEAD_MAX: usize = 64 << 10;

#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// Reads a request; None if the connection ends before one.
    pub(crate) fn read(stream: &mut TcpStream) -> io::Result<Option<Request>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte)? == 0 || head.len() == HEAD_MAX {
                return Ok(None);
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let mut request = Request { method, target, headers, body: Vec::new() };
        let bytes = request.header("content-length").map_or(0, |bytes| bytes.parse().expect("a length"));
        request.body.resize(bytes, 0);
        stream.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// Returns a parameter of the query, decoded.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        let found = query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then_some(value)
        });
        found.map(|value| decoded(&value.replace('+', " ")))
    }

    /// Sends the request to a server. Returns the whole answer, up to the end of the connection.
    pub(crate) fn forward(&self, to: SocketAddr) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(to)?;
        let mut head = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", self.method, self.target);
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "connection") {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&self.body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// Reverses percent-encoding.
pub(crate) fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, left @ ..] = rest {
        let digits = left.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => (bytes.push(byte), rest = &left[2..]).0,
            _ => (bytes.push(*first), rest = left).0,
        }
    }
    String::from_utf8(bytes).expect("names are UTF-8")
}

/// Returns the bytes of an answer. `headers` end with line breaks.
pub(crate) fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Returns an answer that states an error as S3 does.
pub(crate) fn error(status: &str, code: &str, message: &str) -> Vec<u8> {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>\
         <StringToSign>AWS4-HMAC-SHA256</StringToSign><RequestId>4711</RequestId></Error>"
    );
    answer(status, "content-type: application/xml\r\n", body.as_bytes())
}
