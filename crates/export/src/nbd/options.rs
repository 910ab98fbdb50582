//! Parser for the payloads of options. "Option types" of proto.md.

use super::proto::*;
use super::wire::Fields;

/// What is wrong with a payload, for the error reply.
pub(super) type PayloadError = &'static str;

/// Payload of INFO and GO.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoRequest<'a> {
    pub name: &'a str,
    pub wants_name: bool,
    pub wants_description: bool,
}

/// Payload of LIST_META_CONTEXT and SET_META_CONTEXT. Queries are evaluated while they are parsed, and only the names of a few
/// bitmaps are kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextRequest<'a> {
    pub name: &'a str,
    pub queries: u32,
    /// One of the queries is `base:allocation`.
    pub names_allocation: bool,
    /// One of the queries is `base:`, which lists contexts and never selects one.
    pub names_base: bool,
    /// One of the queries is for all of QEMU's contexts, or all of its bitmaps; it selects none either.
    pub names_qemu: bool,
    /// Names of bitmaps, at most `BITMAPS_MAX`, each once.
    pub bitmaps: Vec<&'a str>,
}

/// Parses a string ("Conventions"): UTF-8, at most 4096 bytes.
pub(super) fn string(bytes: &[u8]) -> Result<&str, PayloadError> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err("a name may have at most 4096 bytes");
    }
    std::str::from_utf8(bytes).map_err(|_| "a name must be UTF-8")
}

fn counted_string<'a>(fields: &mut Fields<'a>) -> Result<&'a str, PayloadError> {
    let len = fields.u32().ok_or("the payload ends before the length of a name")?;
    string(fields.bytes(len as usize).ok_or("a name is longer than the payload")?)
}

impl<'a> InfoRequest<'a> {
    pub(super) fn parse(payload: &'a [u8]) -> Result<InfoRequest<'a>, PayloadError> {
        let mut fields = Fields::new(payload);
        let name = counted_string(&mut fields)?;
        let count = fields.u16().ok_or("the payload ends before the information requests")?;
        if fields.left() != usize::from(count) * 2 {
            return Err("the number of information requests does not fit the payload");
        }
        let mut request = InfoRequest { name, wants_name: false, wants_description: false };
        while let Some(kind) = fields.u16() {
            request.wants_name |= kind == INFO_NAME;
            request.wants_description |= kind == INFO_DESCRIPTION;
        }
        Ok(request)
    }
}

impl<'a> ContextRequest<'a> {
    pub(super) fn parse(payload: &'a [u8]) -> Result<ContextRequest<'a>, PayloadError> {
        let mut fields = Fields::new(payload);
        let name = counted_string(&mut fields)?;
        let queries = fields.u32().ok_or("the payload ends before the number of queries")?;
        let mut request = ContextRequest {
            name,
            queries,
            names_allocation: false,
            names_base: false,
            names_qemu: false,
            bitmaps: Vec::new(),
        };
        for _ in 0..queries {
            let query = counted_string(&mut fields)?;
            request.names_allocation |= query == BASE_ALLOCATION;
            request.names_base |= query == BASE_NAMESPACE;
            request.names_qemu |= [QEMU_NAMESPACE, QEMU_BITMAP].contains(&query);
            let bitmap = query.strip_prefix(QEMU_BITMAP).filter(|bitmap| !bitmap.is_empty());
            let is_new =
                |bitmap: &&str| request.bitmaps.len() < BITMAPS_MAX && !request.bitmaps.contains(bitmap);
            request.bitmaps.extend(bitmap.filter(is_new));
        }
        if fields.left() != 0 {
            return Err("bytes follow the last query");
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::wire::Put;

    fn named(name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u32(name.len() as u32);
        bytes.extend_from_slice(name.as_bytes());
        bytes
    }

    #[test]
    fn information_requests_are_counted_exactly() {
        let mut payload = named("vm/disk0");
        payload.put_u16(2);
        payload.put_u16(INFO_NAME);
        payload.put_u16(99);
        let request = InfoRequest::parse(&payload).unwrap();
        assert_eq!(request, InfoRequest { name: "vm/disk0", wants_name: true, wants_description: false });
        payload.push(0);
        assert!(InfoRequest::parse(&payload).is_err());
        assert!(InfoRequest::parse(&payload[..payload.len() - 3]).is_err());
    }

    #[test]
    fn an_announced_count_of_queries_is_not_trusted() {
        let mut payload = named("");
        payload.put_u32(u32::MAX);
        payload.extend(named("base:"));
        assert!(ContextRequest::parse(&payload).is_err());
    }

    #[test]
    fn queries_of_unknown_namespaces_are_passed_over() {
        let mut payload = named("x");
        payload.put_u32(2);
        payload.extend(named("x:dirty-bitmap:a"));
        payload.extend(named("base:allocation"));
        let request = ContextRequest::parse(&payload).unwrap();
        assert!(request.names_allocation && !request.names_base && request.queries == 2);
        assert!(!request.names_qemu && request.bitmaps.is_empty());
    }

    #[test]
    fn few_bitmaps_are_kept_and_each_once() {
        let mut payload = named("x");
        payload.put_u32(14);
        for n in 0..6 {
            payload.extend(named(&format!("qemu:dirty-bitmap:{n}")));
            payload.extend(named(&format!("qemu:dirty-bitmap:{n}")));
        }
        payload.extend(named("qemu:dirty-bitmap:"));
        payload.extend(named("qemu:allocation-depth"));
        let request = ContextRequest::parse(&payload).unwrap();
        assert!(request.names_qemu);
        assert_eq!(request.bitmaps, ["0", "1", "2", "3"]);
    }

    #[test]
    fn names_are_short_utf8() {
        assert!(string(&[b'a'; STRING_BYTES_MAX]).is_ok());
        assert!(string(&[b'a'; STRING_BYTES_MAX + 1]).is_err());
        assert!(string(&[0xff]).is_err());
    }
}
