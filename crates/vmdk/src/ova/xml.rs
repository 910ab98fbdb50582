//! Access to the elements of an OVF descriptor by their local names: writers differ in the prefixes and versions of namespaces.

use blk::{Error, Result};
use roxmltree::{Document, Node, ParsingOptions};

use crate::text::{shown, utf8, wrong};

/// Longest descriptor that is read. One with sixty disks and a licence has some hundred KiB.
pub(crate) const OVF_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of its nodes. Each takes about 100 bytes.
const NODES_MAX: u32 = 1 << 17;
/// Maximum number of attributes of an element, and of declarations of namespaces in all: the parser compares each attribute with
/// all others of its element, and gives each element a list of its namespaces.
const ATTRIBUTES_MAX: usize = 256;
const NAMESPACES_MAX: usize = 256;

/// Parses a descriptor. A document type is refused, and with it every entity of the document's own.
pub(crate) fn parse<'a>(file: &str, bytes: &'a [u8]) -> Result<Document<'a>> {
    if bytes.len() as u64 > OVF_BYTES_MAX {
        return Err(wrong(file, "the length in bytes", bytes.len(), &format!("at most {OVF_BYTES_MAX}")));
    }
    let text = utf8(file, "the OVF descriptor", bytes)?;
    check_work(file, text)?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| {
        let cause = format!("the OVF descriptor is not XML that can be read: {}", short(&error.to_string()));
        Error::damaged(file, format!("{cause}; copy, download or export the OVA again"))
    })
}

/// Refuses a text whose parsing would take time or memory with the square of its length.
fn check_work(file: &str, text: &str) -> Result<()> {
    let namespaces = text.matches("xmlns").count();
    if namespaces > NAMESPACES_MAX {
        return Err(wrong(
            file,
            "the number of namespaces",
            namespaces,
            &format!("at most {NAMESPACES_MAX}"),
        ));
    }
    // A value cannot contain the sign that begins an element.
    let attributes = text.split('<').map(attributes_in).max().unwrap_or_default();
    if attributes > ATTRIBUTES_MAX {
        let expected = format!("at most {ATTRIBUTES_MAX}");
        return Err(wrong(file, "the number of attributes of an element", attributes, &expected));
    }
    Ok(())
}

/// Returns an upper bound of the attributes: equals signs in front of quotes.
fn attributes_in(element: &str) -> usize {
    let values = element.split('=').skip(1);
    values.filter(|value| value.trim_ascii_start().starts_with(['"', '\''])).count()
}

fn short(message: &str) -> String {
    message.chars().take(200).collect()
}

/// Returns the child elements of a name.
pub(crate) fn children<'a, 'input: 'a>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.is_element() && child.tag_name().name() == name)
}

/// Returns the text of the first child of a name, without blanks around it; None if there is none or it is empty.
pub(crate) fn text<'a>(node: Node<'a, '_>, name: &'static str) -> Option<&'a str> {
    let text = node.children().find(|child| child.is_element() && child.tag_name().name() == name)?.text()?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// Returns the value of an attribute.
pub(crate) fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.attributes().find(|attribute| attribute.name() == name).map(|attribute| attribute.value().trim())
}

/// Returns the value of an attribute that the format requires.
pub(crate) fn required<'a>(file: &str, node: Node<'a, '_>, name: &str) -> Result<&'a str> {
    attribute(node, name).filter(|value| !value.is_empty()).ok_or_else(|| {
        let field = format!("the attribute {name} of an element {}", shown(node.tag_name().name()));
        wrong(file, &field, "missing", "a value")
    })
}
