//! The handshake as a state machine over bytes: no I/O, no catalogue, no time.
//!
//! Its owner feeds the received bytes, carries out the returned [`Step`], and sends [`Negotiation::take_output`]. One
//! option is answered at a time: the output never exceeds the replies to one option, and the input never exceeds one
//! option and one receive. The result does not depend on how the bytes were split into receives.

use blk::volume::{ExportEntry, OtherState, VolumeInfo};
use blk::{Error, ErrorKind};

use super::options::{self, ContextRequest, InfoRequest, PayloadError};
use super::proto::*;
use super::wire::{Fields, Put, clip};

/// What the owner does next. Output is sent before the following step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Receive, and `feed`.
    Receive,
    /// An option was answered: call for the next step.
    Answered,
    /// Answer with `list`.
    List,
    /// Look this export up ("" is the default one), and answer with `found` or `not_found`.
    Lookup(String),
    /// Send the output, and carry out the TLS handshake.
    StartTls,
    /// Close the connection: the client ended the handshake.
    Left,
    /// Close the connection for this reason.
    Close(&'static str),
}

/// Properties of an export that was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundExport {
    /// Name of the export in the list.
    pub name: String,
    pub description: String,
    pub info: VolumeInfo,
    /// States with which it can be compared.
    pub states: Vec<OtherState>,
}

/// The negotiated terms, which hold until the connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub export: String,
    /// Size in bytes, a multiple of the smallest block.
    pub size_bytes: u64,
    pub read_only: bool,
    pub fast_zero: bool,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// `base:allocation` was selected for this export.
    pub status: bool,
    /// The states whose bitmaps were selected for this export, in the order of the contexts' IDs.
    pub since: Vec<OtherState>,
}

/// Why an export is being looked up.
enum Purpose {
    ExportName,
    Info { option: u32, wants_name: bool, wants_description: bool },
    Context { option: u32, wanted: WantedContexts },
}

/// Contexts that a client lists or selects.
struct WantedContexts {
    allocation: bool,
    bitmaps: Bitmaps,
}

enum Bitmaps {
    All,
    Named(Vec<String>),
}

/// Contexts that were selected for an export.
struct Selected {
    export: String,
    allocation: bool,
    since: Vec<OtherState>,
}

enum State {
    Flags,
    Options,
    /// The payload of an option that is too large is being skipped.
    Skip {
        option: u32,
        left: u32,
    },
    Lookup(Purpose),
    List,
    Left,
    Ended(&'static str),
}

/// Whether the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsState {
    /// The listener has no TLS.
    Absent,
    /// Before STARTTLS, which has to come first.
    Required,
    Started,
}

/// One client's handshake.
pub(super) struct Negotiation {
    state: State,
    input: Vec<u8>,
    output: Vec<u8>,
    options: u32,
    no_zeroes: bool,
    structured: bool,
    tls: TlsState,
    /// The last selection of contexts.
    selected: Option<Selected>,
}

impl Negotiation {
    /// Starts a handshake; the greeting is the first output.
    pub(super) fn new(requires_tls: bool) -> Negotiation {
        let mut output = Vec::new();
        output.put_u64(GREETING_MAGIC);
        output.put_u64(OPTION_MAGIC);
        output.put_u16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        Negotiation {
            state: State::Flags,
            input: Vec::new(),
            output,
            options: 0,
            no_zeroes: false,
            structured: false,
            tls: if requires_tls { TlsState::Required } else { TlsState::Absent },
            selected: None,
        }
    }

    /// Adds received bytes. Called only after [`Step::Receive`], which bounds the input.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        assert!(
            self.input.len() < OPTION_HEADER_BYTES + OPTION_BYTES_MAX as usize,
            "fed without being asked"
        );
        self.input.extend_from_slice(bytes);
    }

    pub(super) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns what was received after the last byte of the handshake.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.input
    }

    pub(super) fn step(&mut self) -> Step {
        match &self.state {
            State::Flags => self.client_flags(),
            State::Options => self.option(),
            State::Skip { option, left } => self.skip(*option, *left),
            State::Lookup(_) | State::List => unreachable!("a question was not answered"),
            State::Left => Step::Left,
            State::Ended(why) => Step::Close(why),
        }
    }

    fn close(&mut self, why: &'static str) -> Step {
        self.state = State::Ended(why);
        Step::Close(why)
    }

    /// Handles the "Client flags".
    fn client_flags(&mut self) -> Step {
        let Some(flags) = Fields::new(&self.input).u32() else { return Step::Receive };
        self.input.drain(..4);
        let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return self.close("unknown client flags");
        }
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.state = State::Options;
        Step::Answered
    }

    fn option(&mut self) -> Step {
        let mut fields = Fields::new(&self.input);
        let (Some(magic), Some(option), Some(len)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return Step::Receive;
        };
        if magic != OPTION_MAGIC {
            return self.close("an option does not start with the option magic");
        }
        if self.options == OPTIONS_MAX {
            return self.close("too many options");
        }
        if len > OPTION_BYTES_MAX {
            self.options += 1;
            self.input.drain(..OPTION_HEADER_BYTES);
            self.state = State::Skip { option, left: len };
            return Step::Answered;
        }
        let end = OPTION_HEADER_BYTES + len as usize;
        if self.input.len() < end {
            return Step::Receive;
        }
        let payload = self.input[OPTION_HEADER_BYTES..end].to_vec();
        self.input.drain(..end);
        self.options += 1;
        match self.answer(option, &payload) {
            Ok(step) => step,
            Err(_) if option == OPT_EXPORT_NAME => self.close("a bad export name"),
            Err(complaint) => self.refuse(option, REP_ERR_INVALID, complaint),
        }
    }

    fn skip(&mut self, option: u32, left: u32) -> Step {
        let now = self.input.len().min(left as usize);
        self.input.drain(..now);
        let left = left - now as u32;
        self.state = State::Skip { option, left };
        if left > 0 {
            return Step::Receive;
        }
        self.state = State::Options;
        if option == OPT_EXPORT_NAME {
            return self.close("the name of an export is too long");
        }
        self.refuse(option, REP_ERR_TOO_BIG, "the payload of this option is too large")
    }

    fn answer(&mut self, option: u32, payload: &[u8]) -> Result<Step, PayloadError> {
        if self.tls == TlsState::Required && !matches!(option, OPT_STARTTLS | OPT_ABORT) {
            return Ok(self.require_tls(option));
        }
        match option {
            OPT_EXPORT_NAME => Ok(self.lookup(options::string(payload)?, Purpose::ExportName)),
            OPT_ABORT => {
                self.reply(option, REP_ACK, &[]);
                self.state = State::Left;
                Ok(Step::Left)
            }
            OPT_LIST => {
                without_payload(payload)?;
                self.state = State::List;
                Ok(Step::List)
            }
            OPT_INFO | OPT_GO => self.info(option, payload),
            OPT_STRUCTURED_REPLY => {
                without_payload(payload)?;
                self.structured = true;
                Ok(self.acknowledge(option))
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.context(option, payload),
            OPT_STARTTLS => self.start_tls(payload),
            _ => Ok(self.refuse(option, REP_ERR_UNSUP, "unknown option")),
        }
    }

    /// Refuses an option in clear text. Nothing is said of the exports.
    fn require_tls(&mut self, option: u32) -> Step {
        match option {
            OPT_EXPORT_NAME => self.close("TLS is required, and EXPORT_NAME leaves no room to say so"),
            _ => self.refuse(option, REP_ERR_TLS_REQD, "TLS is required; start it first"),
        }
    }

    fn start_tls(&mut self, payload: &[u8]) -> Result<Step, PayloadError> {
        without_payload(payload)?;
        match self.tls {
            // After "unsupported", clients that would prefer TLS continue without it; after "policy" they do not.
            TlsState::Absent => {
                Ok(self.refuse(OPT_STARTTLS, REP_ERR_UNSUP, "this server does not speak TLS"))
            }
            TlsState::Started => Err("the connection is encrypted already"),
            // A man in the middle could have added them to what the client sends under TLS.
            TlsState::Required if !self.input.is_empty() => {
                Ok(self.close("bytes after STARTTLS that are not encrypted"))
            }
            TlsState::Required => {
                self.acknowledge(OPT_STARTTLS);
                self.tls = TlsState::Started;
                Ok(Step::StartTls)
            }
        }
    }

    fn info(&mut self, option: u32, payload: &[u8]) -> Result<Step, PayloadError> {
        let InfoRequest { name, wants_name, wants_description } = InfoRequest::parse(payload)?;
        Ok(self.lookup(name, Purpose::Info { option, wants_name, wants_description }))
    }

    fn context(&mut self, option: u32, payload: &[u8]) -> Result<Step, PayloadError> {
        let sets = option == OPT_SET_META_CONTEXT;
        if sets {
            // A request that fails also replaces the earlier selection.
            self.selected = None;
        }
        if !self.structured {
            return Err("structured replies have to be negotiated first");
        }
        let request = ContextRequest::parse(payload)?;
        let lists_all = |namespace: bool| !sets && (namespace || request.queries == 0);
        let named = request.bitmaps.iter().map(|name| (*name).to_owned()).collect();
        let wanted = WantedContexts {
            allocation: request.names_allocation || lists_all(request.names_base),
            bitmaps: if lists_all(request.names_qemu) { Bitmaps::All } else { Bitmaps::Named(named) },
        };
        Ok(self.lookup(request.name, Purpose::Context { option, wanted }))
    }

    fn lookup(&mut self, name: &str, purpose: Purpose) -> Step {
        self.state = State::Lookup(purpose);
        Step::Lookup(name.to_string())
    }

    /// Answers [`Step::List`].
    pub(super) fn list(&mut self, exports: &[ExportEntry]) {
        assert!(matches!(self.state, State::List), "the client did not ask for the list");
        for export in exports {
            let mut payload = Vec::with_capacity(4 + export.name.len() + export.description.len());
            payload.put_u32(export.name.len() as u32);
            payload.extend_from_slice(export.name.as_bytes());
            payload.extend_from_slice(clip(&export.description, STRING_BYTES_MAX).as_bytes());
            self.reply(OPT_LIST, REP_SERVER, &payload);
        }
        self.acknowledge(OPT_LIST);
    }

    /// Answers [`Step::Lookup`]. With terms, transmission starts once the output has been sent.
    pub(super) fn found(&mut self, export: &FoundExport) -> Option<Terms> {
        let State::Lookup(purpose) = std::mem::replace(&mut self.state, State::Options) else {
            panic!("the client did not ask for an export")
        };
        match purpose {
            Purpose::ExportName => {
                let terms = self.terms(export);
                self.output.put_u64(terms.size_bytes);
                self.output.put_u16(terms.transmission_flags());
                let padding = if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING };
                self.output.resize(self.output.len() + padding, 0);
                Some(terms)
            }
            Purpose::Info { option, wants_name, wants_description } => {
                self.describe(option, export, wants_name, wants_description);
                (option == OPT_GO).then(|| self.terms(export))
            }
            Purpose::Context { option, wanted } => {
                self.contexts(option, &wanted, export);
                None
            }
        }
    }

    /// Answers [`Step::Lookup`].
    pub(super) fn not_found(&mut self, error: &Error) {
        let State::Lookup(purpose) = std::mem::replace(&mut self.state, State::Options) else {
            panic!("the client did not ask for an export")
        };
        let option = match purpose {
            Purpose::ExportName => {
                self.close("the export cannot be had, and EXPORT_NAME leaves no room to say so");
                return;
            }
            Purpose::Info { option, .. } | Purpose::Context { option, .. } => option,
        };
        let kind = match error.kind {
            ErrorKind::Refused | ErrorKind::Locked => REP_ERR_POLICY,
            ErrorKind::Cancelled => REP_ERR_SHUTDOWN,
            _ => REP_ERR_UNKNOWN,
        };
        self.refuse(option, kind, &error.to_string());
    }

    fn terms(&self, export: &FoundExport) -> Terms {
        let block = u64::from(BLOCK_BYTES_MIN);
        let selected = self.selected.as_ref().filter(|selected| selected.export == export.name);
        Terms {
            export: export.name.clone(),
            size_bytes: export.info.size_bytes / block * block,
            read_only: export.info.read_only,
            fast_zero: export.info.fast_zero && !export.info.read_only,
            structured: self.structured,
            status: selected.is_some_and(|selected| selected.allocation),
            since: selected.map_or_else(Vec::new, |selected| selected.since.clone()),
        }
    }

    /// Appends "NBD_REP_INFO". Block sizes are always sent; clients that support them should comply.
    fn describe(&mut self, option: u32, export: &FoundExport, wants_name: bool, wants_description: bool) {
        let terms = self.terms(export);
        let mut payload = Vec::new();
        payload.put_u16(INFO_EXPORT);
        payload.put_u64(terms.size_bytes);
        payload.put_u16(terms.transmission_flags());
        self.reply(option, REP_INFO, &payload);
        let mut payload = Vec::new();
        payload.put_u16(INFO_BLOCK_SIZE);
        payload.put_u32(BLOCK_BYTES_MIN);
        payload.put_u32(preferred_block(export.info.preferred_bytes));
        payload.put_u32(PAYLOAD_BYTES_MAX);
        self.reply(option, REP_INFO, &payload);
        if wants_name {
            self.describe_text(option, INFO_NAME, &export.name);
        }
        if wants_description && !export.description.is_empty() {
            self.describe_text(option, INFO_DESCRIPTION, &export.description);
        }
        self.acknowledge(option);
    }

    fn describe_text(&mut self, option: u32, kind: u16, text: &str) {
        let mut payload = Vec::new();
        payload.put_u16(kind);
        payload.extend_from_slice(clip(text, STRING_BYTES_MAX).as_bytes());
        self.reply(option, REP_INFO, &payload);
    }

    /// Lists or selects contexts. Bitmaps of states that the export has not are passed over.
    fn contexts(&mut self, option: u32, wanted: &WantedContexts, export: &FoundExport) {
        let sets = option == OPT_SET_META_CONTEXT;
        let since: Vec<OtherState> = match &wanted.bitmaps {
            Bitmaps::All => export.states.clone(),
            Bitmaps::Named(names) => {
                let state = |name: &String| export.states.iter().find(|state| state.name == *name).cloned();
                names.iter().filter_map(state).collect()
            }
        };
        if wanted.allocation {
            self.one_context(option, if sets { BASE_ALLOCATION_ID } else { 0 }, BASE_ALLOCATION);
        }
        for (id, state) in (QEMU_BITMAP_ID..).zip(&since) {
            let name = format!("{QEMU_BITMAP}{}", state.name);
            self.one_context(option, if sets { id } else { 0 }, &name);
        }
        if sets {
            let (export, allocation) = (export.name.clone(), wanted.allocation);
            self.selected = Some(Selected { export, allocation, since });
        }
        self.acknowledge(option);
    }

    fn one_context(&mut self, option: u32, id: u32, name: &str) {
        let mut payload = Vec::with_capacity(4 + name.len());
        payload.put_u32(id);
        payload.extend_from_slice(name.as_bytes());
        self.reply(option, REP_META_CONTEXT, &payload);
    }

    fn acknowledge(&mut self, option: u32) -> Step {
        self.reply(option, REP_ACK, &[]);
        self.state = State::Options;
        Step::Answered
    }

    fn refuse(&mut self, option: u32, kind: u32, why: &str) -> Step {
        self.reply(option, kind, clip(why, STRING_BYTES_MAX).as_bytes());
        Step::Answered
    }

    fn reply(&mut self, option: u32, kind: u32, payload: &[u8]) {
        self.output.put_u64(OPTION_REPLY_MAGIC);
        self.output.put_u32(option);
        self.output.put_u32(kind);
        self.output.put_u32(payload.len() as u32);
        self.output.extend_from_slice(payload);
    }
}

impl Terms {
    /// Returns the "Transmission flags". MULTI_CONN is correct because every connection serves the same volume, whose
    /// flush covers all of them.
    pub fn transmission_flags(&self) -> u16 {
        let mut flags = TRANSMIT_HAS_FLAGS | TRANSMIT_FLUSH | TRANSMIT_MULTI_CONN | TRANSMIT_CACHE;
        if self.structured {
            flags |= TRANSMIT_DF;
        }
        if self.read_only {
            return flags | TRANSMIT_READ_ONLY;
        }
        flags |= TRANSMIT_FUA | TRANSMIT_TRIM | TRANSMIT_WRITE_ZEROES;
        if self.fast_zero {
            flags |= TRANSMIT_FAST_ZERO;
        }
        flags
    }
}

fn without_payload(payload: &[u8]) -> Result<(), PayloadError> {
    if payload.is_empty() { Ok(()) } else { Err("this option takes no payload") }
}

/// Returns the preferred block ("Size constraints"): a power of two, not below the smallest block, not above the
/// largest payload.
fn preferred_block(wished: u32) -> u32 {
    if wished.is_power_of_two() {
        wished.clamp(BLOCK_BYTES_MIN, PAYLOAD_BYTES_MAX)
    } else {
        BLOCK_BYTES_PREFERRED
    }
}

#[cfg(test)]
#[path = "negotiate_tests.rs"]
mod tests;
