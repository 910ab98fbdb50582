use blk::ErrorKind;
use proptest::prelude::*;

use super::*;

const REAL_CHILD: &str = concat!(
    "# Disk DescriptorFile\r\n",
    "version=1 \r\n",
    "CID=864c381\r\n",
    "parentCID=0f00ba11\r\n",
    "isNativeSnapshot=\"no\"\r\n",
    "createType=\"vmfsSparse\"\r\n",
    "parentFileNameHint=\"Base \"quoted\" R91.vmdk\"\r\n",
    "# Extent description\r\n",
    "RW 41943040 VMFSSPARSE \"Base R91-000001-delta.vmdk\"\r\n",
    "\r\n",
    "#DDB\r\n",
    "ddb.unknown.to.us = \"kept\"\r\n",
    "ddb.longContentID = \"00112233445566778899aabbccddeeff\"",
);

fn parse(text: &str) -> Result<Descriptor> {
    Descriptor::parse("web.vmdk", text.as_bytes())
}

fn minimal(extents: &str) -> String {
    format!("version=1\nCID=1\nparentCID=ffffffff\ncreateType=\"vmfs\"\n{extents}\n")
}

#[test]
fn a_real_child() {
    let descriptor = parse(REAL_CHILD).unwrap();
    assert_eq!(descriptor.cid(), 0x864c381);
    assert_eq!(descriptor.parent_cid(), Some(0x0f00_ba11));
    assert_eq!(descriptor.parent_hint(), Some("Base \"quoted\" R91.vmdk"));
    assert_eq!(descriptor.create_type(), "vmfsSparse");
    assert_eq!(descriptor.capacity_sectors(), 41_943_040);
    assert_eq!(descriptor.ddb("Unknown.To.Us"), Some("kept"));
    assert!(!descriptor.is_prepared());
    assert_eq!(descriptor.to_bytes(), REAL_CHILD.as_bytes());
    assert!(Descriptor::probe(REAL_CHILD.as_bytes()));
}

#[test]
fn edits_keep_everything_else() {
    let mut descriptor = parse(REAL_CHILD).unwrap();
    descriptor.set_content_id(ContentId::from_random(0xdead_beef));
    descriptor.set_parent("New.vmdk", 0x12);
    descriptor.set_extent_sectors(0, 2048);
    let expected = REAL_CHILD
        .replace("CID=864c381", "CID=deadbeef")
        .replace("0f00ba11", "00000012")
        .replace("Base \"quoted\" R91.vmdk", "New.vmdk")
        .replace("41943040", "2048")
        .replace("00112233445566778899aabbccddeeff\"", "000000000000000000000000deadbeef\"\r\n");
    assert_eq!(String::from_utf8(descriptor.to_bytes()).unwrap(), expected);
    assert_eq!(parse(&expected).unwrap(), descriptor);
}

#[test]
fn a_base_becomes_a_child() {
    let mut descriptor = parse(&minimal("RW 8 VMFS \"x-flat.vmdk\"")).unwrap();
    descriptor.set_parent("p.vmdk", 7);
    descriptor.set_content_id(ContentId::from_random(5));
    let text = String::from_utf8(descriptor.to_bytes()).unwrap();
    assert!(text.contains("parentFileNameHint=\"p.vmdk\"\nRW 8 VMFS"), "{text}");
    assert!(text.ends_with("\nddb.longContentID = \"00000000000000000000000000000005\"\n"), "{text}");
    assert_eq!(parse(&text).unwrap().parent_hint(), Some("p.vmdk"));
}

#[test]
fn change_tracking_is_dropped() {
    let text = minimal("RW 8 VMFS \"x-flat.vmdk\"").replace("version=1", "version=3");
    let mut descriptor = parse(&format!("{text}changeTrackPath=\"x-ctk.vmdk\"\n")).unwrap();
    assert!(descriptor.drop_change_tracking());
    assert_eq!(descriptor.to_bytes(), text.replace("version=3", "version=1").as_bytes());
    assert!(!descriptor.drop_change_tracking());
}

#[test]
fn new_links_read_back() {
    let content_id = ContentId::from_random(0x0123_4567_89ab_cdef_0123_4567_ffff_ffff);
    assert_eq!(content_id.cid(), 0x7fff_ffff);
    let base = NewBase {
        extent_file: "web-flat.vmdk",
        capacity_sectors: 41_943_040,
        content_id,
        uuid: 1,
        prepared_for: None,
    };
    let base = base.descriptor("web.vmdk").unwrap();
    assert_eq!((base.create_type(), base.parent_cid(), base.is_prepared()), ("vmfs", None, false));
    assert_eq!(base.ddb("thinProvisioned"), Some("1"));
    assert_eq!(base.extents()[0].kind, ExtentKind::Vmfs);

    let child = NewChild {
        extent_file: "web-000001-delta.vmdk",
        capacity_sectors: 41_943_040,
        content_id: ContentId::from_random(9),
        parent: "web.vmdk",
        parent_cid: base.cid(),
        owner: Some(0xabc),
        note: None,
    };
    let mut child = child.descriptor("web-000001.vmdk", ExtentKind::VmfsSparse).unwrap();
    assert_eq!((child.parent_hint(), child.parent_cid()), (Some("web.vmdk"), Some(base.cid())));
    assert!(child.is_prepared());
    child.clear_prepared();
    let again = Descriptor::parse("web-000001.vmdk", &child.to_bytes()).unwrap();
    assert!(!again.is_prepared());
    assert_eq!((again.owner(), base.owner()), (Some(0xabc), None));
    assert_eq!(again.extents()[0].to_string(), "RW 41943040 VMFSSPARSE \"web-000001-delta.vmdk\"");
}

#[test]
fn extents() {
    let table = [
        ("RW 8 FLAT \"a-flat.vmdk\" 16", "RW 8 FLAT \"a-flat.vmdk\" 16"),
        ("rw 8 flat \"a-flat.vmdk\"", "RW 8 FLAT \"a-flat.vmdk\" 0"),
        ("RDONLY 8 SPARSE \"a b.vmdk\"", "RDONLY 8 SPARSE \"a b.vmdk\""),
        ("RW 8 ZERO", "RW 8 ZERO"),
        ("NOACCESS 8 ZERO 0", "NOACCESS 8 ZERO"),
        ("RW 8 VMFSRDM \"x-rdm.vmdk\"", "RW 8 VMFSRDM \"x-rdm.vmdk\""),
        ("RW 8 FLAT \"\\\\.\\PhysicalDrive0\" 63 partition \"x\"", ""),
    ];
    for (line, expected) in table {
        let parsed = parse(&minimal(line)).unwrap();
        // The last one contains a second quoted word; the name then extends to the last quote, as VMware reads it.
        if !expected.is_empty() {
            assert_eq!(parsed.extents()[0].to_string(), expected, "{line}");
        }
    }
    let three = "RW 2048 FLAT \"a\" 0\nRW 2048 ZERO\nRDONLY 2048 FLAT \"b\" 0";
    assert_eq!(parse(&minimal(three)).unwrap().capacity_sectors(), 6144);
}

#[test]
fn bad_descriptors_are_named() {
    use ErrorKind::{Damaged, Unsupported};
    let good = "RW 8 VMFS \"x-flat.vmdk\"";
    let table = [
        (String::new(), Damaged, "the first line that is no comment is nothing"),
        ("PK\x03\x04 zip".into(), Damaged, "line 1 is"),
        ("a=1\nversion=1\n".into(), Damaged, "is this a disk descriptor?"),
        (minimal(good).replace("version=1", "version=4"), Unsupported, "version is \"4\""),
        (minimal(good).replace("CID=1\n", "CID=xyz\n"), Damaged, "CID is \"xyz\""),
        (minimal(good).replace("CID=1\n", "CID=123456789\n"), Damaged, "1 to 8 hexadecimal"),
        (minimal(good).replace("CID=1\n", ""), Damaged, "CID is absent"),
        (minimal(good).replace("CID=1\n", "CID=1\nCID=2\n"), Damaged, "CID is given twice"),
        (minimal(good).replace("ffffffff", "5"), Damaged, "parentFileNameHint is absent"),
        (minimal(&format!("parentFileNameHint=\"p\"\n{good}")), Damaged, "parentCID is ffffffff"),
        (minimal(good).replace("createType=\"vmfs\"\n", ""), Damaged, "createType is absent"),
        (minimal(good).replace("\"vmfs\"", "\"vmfs"), Damaged, "line 4 is"),
        (minimal(""), Damaged, "the list of extents is empty"),
        (minimal("RW 0 VMFS \"x\""), Damaged, "number of sectors is 0"),
        (minimal("RW -1 VMFS \"x\""), Damaged, "number of sectors is"),
        (minimal("RW eight VMFS \"x\""), Damaged, "number of sectors is \"eight\""),
        (minimal("RW 99999999999999999999 VMFS \"x\""), Damaged, "number of sectors is"),
        (minimal("RW 18446744073709551615 VMFS \"x\""), Damaged, "number of sectors is"),
        (minimal("RW 8 VMFS x"), Damaged, "without a file name"),
        (minimal("RW 8 VMFS \"x\" y"), Damaged, "the offset is \"y\""),
        (minimal("RW 8 VMFSSPARSE \"x\" 8"), Damaged, "0 for VMFSSPARSE"),
        (minimal("RW 8 FLAT \"x\" 18014398509481983"), Damaged, "its end below 2^54"),
        (minimal("RW 8 NEWSPARSE \"x\""), Unsupported, "type \"NEWSPARSE\""),
        (minimal("RW 8"), Unsupported, "type \"\""),
        (minimal("RW 18014398509481983 FLAT \"x\" 0\nRW 8 ZERO"), Damaged, "the sum of all extents"),
    ];
    for (text, kind, message) in table {
        let error = parse(&text).unwrap_err();
        assert!(error.to_string().contains(message), "{text:?} gave {error}");
        assert_eq!(error.kind, kind, "{error}");
    }
}

/// Returns a text as QEMU leaves it if the new CID has `shorter` digits less than the old one, in a file of `size`
/// bytes.
fn moved_forward(text: &str, shorter: usize, size: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(size, 0);
    let after = text.replace("CID=12345678\n", &format!("CID={}\n", &"12345678"[shorter..]));
    bytes[..after.len()].copy_from_slice(after.as_bytes());
    bytes[after.len()] = 0;
    bytes
}

#[test]
fn bytes_behind_the_text_of_qemus_descriptors_are_ignored() {
    let text = "version=1\nCID=12345678\ncreateType=\"vmfs\"\nRW 8 VMFS \"x\"\nddb.adapterType = \"ide\"\n";
    for shorter in 1..8 {
        for size in [text.len(), text.len() + 1, 10240] {
            let bytes = moved_forward(text, shorter, size);
            let mut descriptor = Descriptor::parse("x", &bytes).unwrap();
            assert_eq!(descriptor.ddb("adapterType"), Some("ide"));
            descriptor.set_content_id(ContentId::from_random(5));
            let again = Descriptor::parse("x", &descriptor.to_bytes()).unwrap();
            assert_eq!(again, descriptor);
        }
    }
    // A NUL in the middle is damage, whatever follows it.
    let mut holed = text.as_bytes().to_vec();
    holed[text.len() - 12..text.len() - 8].fill(0);
    Descriptor::parse("x", &holed).unwrap_err();
}

#[test]
fn probing() {
    assert!(Descriptor::probe(b"# any\n\n  Version=1\n"));
    for other in [&b"KDMV\x01\0\0\0"[..], b"COWD", b"", b"# only a comment\n", b"\0\0\0\0", b"ver"] {
        assert!(!Descriptor::probe(other));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Descriptor::parse("x", &bytes);
        let _ = Descriptor::probe(&bytes);
    }

    #[test]
    fn an_accepted_text_is_written_back_unchanged(text in "version=1\nCID=[0-9a-f]{1,9}\ncreateType=\"vmfs\"\n(#.*\n|ddb\\.[a-z]{1,5} = \".*\"\n|(RW|RDONLY|NOACCESS) [0-9]{1,21} (FLAT|ZERO|VMFS|X) \".*\"( [0-9]{1,20})?\n|.*\n){0,8}") {
        if let Ok(descriptor) = Descriptor::parse("x", text.as_bytes()) {
            let kept = descriptor.to_bytes();
            prop_assert!(text.as_bytes().starts_with(&kept));
            prop_assert!(matches!(text.as_bytes().get(kept.len()), None | Some(0)));
            prop_assert!(descriptor.capacity_sectors() > 0);
        }
    }

    #[test]
    fn every_edit_reads_back(id in any::<u128>(), cid in 0u32..u32::MAX, sectors in 1..=extent::DISK_SECTORS_MAX, name in "[a-z \"]{1,12}") {
        let mut descriptor = parse(REAL_CHILD).unwrap();
        descriptor.set_content_id(ContentId::from_random(id));
        descriptor.set_parent(&name, cid);
        descriptor.set_extent_sectors(0, sectors);
        let again = parse(std::str::from_utf8(&descriptor.to_bytes()).unwrap()).unwrap();
        prop_assert_eq!(again, descriptor);
    }
}
