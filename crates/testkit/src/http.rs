//! A small HTTP/1.1 client on a plain socket.
//!
//! A library would hide what the tests of streams must see: whether a body *ended* (terminating
//! chunk, or full length) or was *cut off*.

use std::{io, net::SocketAddr, sync::OnceLock, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// Limit for a whole small exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
static KEY: OnceLock<String> = OnceLock::new();

/// A response whose body has not been read yet.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: ResponseBody,
}

/// A complete small response.
#[derive(Debug, Clone)]
pub struct TextResponse {
    pub status: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub text: String,
}

/// A request with a small response.
#[derive(Debug, Clone, Copy)]
pub struct HttpRequest<'a> {
    /// GET, POST, PUT, PATCH, DELETE.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Header fields, sent unchanged.
    pub headers: &'a [(&'a str, &'a str)],
    /// Sent without a content-type, which the caller adds.
    pub body: &'a [u8],
}

/// A body that is read piece by piece.
#[derive(Debug)]
pub struct ResponseBody {
    stream: BufReader<TcpStream>,
    framing: Framing,
}

#[derive(Debug)]
enum Framing {
    /// Bytes left of the current chunk.
    Chunked(u64),
    /// Remaining bytes of the body.
    Length(u64),
    UntilClose,
    Ended,
}

impl Response {
    /// A header field by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl TextResponse {
    /// A header field by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.text).with_context(|| format!("{}: not JSON: {}", self.status, self.text))
    }
}

/// Makes every later request of this process carry this API key, for a program whose fleet needs
/// authentication because it is not on loopback. Only the first call takes effect.
pub fn carry_key(key: &str) {
    KEY.get_or_init(|| key.to_owned());
}

/// Sends a GET and reads the head of the response. `headers` are sent unchanged.
pub async fn open(addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> io::Result<Response> {
    begin(addr, HttpRequest { method: "GET", path, headers, body: &[] }).await
}

/// Sends a request and reads the head of the response.
pub async fn begin(addr: SocketAddr, request: HttpRequest<'_>) -> io::Result<Response> {
    let HttpRequest { method, path, headers, body } = request;
    let mut stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\n");
    if let Some(key) = KEY.get() {
        head.push_str(&format!("authorization: Bearer {key}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if method != "GET" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    read_head(BufReader::with_capacity(32 * 1024, stream)).await
}

/// GETs a small resource completely.
pub async fn get(addr: SocketAddr, path: &str) -> Result<TextResponse> {
    exchange(addr, HttpRequest { method: "GET", path, headers: &[], body: &[] }).await
}

/// Sends a request on its own connection and reads a small response completely.
pub async fn exchange(addr: SocketAddr, request: HttpRequest<'_>) -> Result<TextResponse> {
    let headers = [request.headers, &[("connection", "close")]].concat();
    let whole = async {
        let mut response = begin(addr, HttpRequest { headers: &headers, ..request }).await?;
        let mut body = Vec::new();
        while response.body.read(&mut body).await? > 0 {}
        let text = String::from_utf8_lossy(&body).into_owned();
        Ok::<_, io::Error>(TextResponse { status: response.status, headers: response.headers, text })
    };
    let what = || format!("{} http://{addr}{}", request.method, request.path);
    let answer = timeout(EXCHANGE_TIMEOUT, whole).await;
    answer.with_context(|| format!("{}: no answer", what()))?.with_context(what)
}

/// GETs a JSON document; any status except 200 is an error.
pub async fn get_json(addr: SocketAddr, path: &str) -> Result<serde_json::Value> {
    let answer = get(addr, path).await?;
    if answer.status != 200 {
        bail!("GET http://{addr}{path}: {} {}", answer.status, answer.text);
    }
    serde_json::from_str(&answer.text).with_context(|| format!("GET {path}: not JSON"))
}

async fn read_head(mut stream: BufReader<TcpStream>) -> io::Result<Response> {
    let status_line = read_line(&mut stream).await?;
    let status = status_line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| malformed(format!("status line {status_line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(&mut stream).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed(format!("header {line:?}")))?;
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    let framing = framing(&headers)?;
    Ok(Response { status, headers, body: ResponseBody { stream, framing } })
}

fn framing(headers: &[(String, String)]) -> io::Result<Framing> {
    let find = |name| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Ok(Framing::Chunked(0));
    }
    match find("content-length") {
        Some(length) => {
            length.parse().map(Framing::Length).map_err(|_| malformed(format!("length {length:?}")))
        }
        None => Ok(Framing::UntilClose),
    }
}

impl ResponseBody {
    /// Appends the next bytes to `into` and returns their number; 0 if the body has ended.
    ///
    /// A connection that closes before the end is an `UnexpectedEof`.
    pub async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        if let Framing::Chunked(0) = self.framing {
            self.next_chunk().await?;
        }
        let wanted = match self.framing {
            Framing::Ended | Framing::Length(0) => return Ok(0),
            Framing::Chunked(left) | Framing::Length(left) => left,
            Framing::UntilClose => u64::MAX,
        };
        let available = self.stream.fill_buf().await?;
        let taken = available.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
        into.extend_from_slice(&available[..taken]);
        self.stream.consume(taken);
        self.account(taken).await?;
        Ok(taken)
    }

    async fn account(&mut self, taken: usize) -> io::Result<()> {
        match &mut self.framing {
            Framing::UntilClose if taken == 0 => self.framing = Framing::Ended,
            Framing::UntilClose | Framing::Ended => {}
            _ if taken == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Framing::Length(left) => *left -= taken as u64,
            Framing::Chunked(left) => {
                *left -= taken as u64;
                if *left == 0 {
                    self.stream.read_exact(&mut [0; 2]).await?;
                }
            }
        }
        Ok(())
    }

    async fn next_chunk(&mut self) -> io::Result<()> {
        let line = read_line(&mut self.stream).await?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| malformed(format!("chunk size {line:?}")))?;
        self.framing = Framing::Chunked(size);
        if size == 0 {
            while !read_line(&mut self.stream).await?.is_empty() {}
            self.framing = Framing::Ended;
        }
        Ok(())
    }
}

async fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| malformed("a line that is not UTF-8".to_owned()))
}

fn malformed(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed response: {what}"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn body_of(response: &'static [u8]) -> (Vec<u8>, io::Result<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_exact(&mut [0; 3]).await.unwrap();
            socket.write_all(response).await.unwrap();
            socket.shutdown().await.unwrap();
            socket.read_to_end(&mut Vec::new()).await.unwrap();
        };
        let client = async {
            let mut body = open(addr, "/", &[]).await.unwrap().body;
            let mut bytes = Vec::new();
            loop {
                match body.read(&mut bytes).await {
                    Ok(read) if read > 0 => {}
                    last => return (bytes, last),
                }
            }
        };
        tokio::join!(server, client).1
    }

    #[tokio::test]
    async fn an_end_differs_from_a_cut() {
        let (bytes, end) =
            body_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
                .await;
        assert_eq!((bytes.as_slice(), end.unwrap()), (b"abcde".as_slice(), 0));
        let (bytes, end) =
            body_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        assert_eq!(
            (bytes.as_slice(), end.unwrap_err().kind()),
            (b"abc".as_slice(), io::ErrorKind::UnexpectedEof)
        );
        let (bytes, end) = body_of(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").await;
        assert_eq!(
            (bytes.as_slice(), end.unwrap_err().kind()),
            (b"ab".as_slice(), io::ErrorKind::UnexpectedEof)
        );
        let (bytes, end) = body_of(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").await;
        assert_eq!((bytes.as_slice(), end.unwrap()), (b"ab".as_slice(), 0));
    }
}
