use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind, Result, SECTOR};
use proptest::prelude::*;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use sim::{Options, SimWorld};

use super::testing::{archive, descriptor, header, padded, put, sum};
use super::*;
use crate::replay;
use crate::stream::testing::{Form, Image};
use crate::testing::root;
use crate::vmx::Bus;

const FILE: &str = "web.ova";
const SECTORS: u64 = 100;

fn disk_image(fill: u8, sectors: u64) -> Vec<u8> {
    let mut image = Image::new(sectors, 8, Form::AtEnd);
    image.fill(0, fill).fill(5, fill + 100);
    image.build().bytes
}

fn hex<D: Digest>(bytes: &[u8]) -> String {
    D::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The members of an OVA.
struct Parts {
    descriptor: String,
    disks: [Vec<u8>; 3],
}

impl Parts {
    fn new() -> Parts {
        // The third disk has its capacity in GiB.
        let disks = [disk_image(1, SECTORS), disk_image(2, SECTORS), disk_image(3, (1 << 30) / SECTOR - 7)];
        let sizes = [0, 1, 2].map(|disk: usize| disks[disk].len() as u64);
        Parts { descriptor: descriptor(sizes, SECTORS * SECTOR), disks }
    }

    fn manifest(&self) -> String {
        let [first, second, third] = &self.disks;
        format!(
            "SHA256(web.ovf)= {}\r\nSHA1(web server-disk1.vmdk)= {}\r\nSHA512(web-disk2.vmdk) = {}\n\nsha256(web-disk3.vmdk)={}\n",
            hex::<Sha256>(self.descriptor.as_bytes()),
            hex::<Sha1>(first),
            hex::<Sha512>(second),
            hex::<Sha256>(third).to_ascii_uppercase(),
        )
    }

    fn bytes(&self) -> Vec<u8> {
        let [first, second, third] = &self.disks;
        archive(&[
            ("web.ovf", self.descriptor.as_bytes()),
            ("web.mf", self.manifest().as_bytes()),
            ("web server-disk1.vmdk", first),
            ("web-disk2.vmdk", second),
            ("web-disk3.vmdk", third),
        ])
    }
}

fn with_file<T: 'static, F: Future<Output = T> + 'static>(
    bytes: &[u8],
    main: impl FnOnce(Env) -> F + 'static,
) -> T {
    let world = SimWorld::new(1, Options::default());
    world.write_file(FILE, bytes);
    world.run(main).expect("nothing waits for ever")
}

async fn open(env: &Env) -> Result<Ova> {
    Ova::open(root(env).open(FILE, OpenMode::Read).await?).await
}

/// Opens an OVA and all of its disks, reads them, and verifies their hashes.
fn evidence(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    with_file(bytes, async |env| {
        let ova = open(&env).await?;
        let mut found = Vec::new();
        for disk in &ova.disks {
            let Some(member) = &disk.file else { continue };
            let stream = ova.open_disk(disk).await?;
            let len = stream.size_bytes().min(SECTORS * SECTOR) as usize;
            let (buf, result) = stream.read(0, Buf::alloc(len)).await;
            result?;
            found.push((disk.id.clone(), buf.to_vec()));
            if ova.manifest.is_some() {
                ova.verify(&member.name, async |_| Ok(())).await?;
            }
        }
        Ok(found)
    })
}

fn refused(bytes: &[u8], kind: ErrorKind, expected: &str) {
    let error = evidence(bytes).err().unwrap_or_else(|| panic!("{expected}: it was read"));
    assert!(error.kind == kind && error.to_string().contains(expected), "{expected}: {error}");
}

#[test]
fn a_vm_has_its_disks_in_order() {
    let parts = Parts::new();
    let descriptor = parts.descriptor.clone();
    with_file(&parts.bytes(), async move |env| {
        let ova = open(&env).await.unwrap();
        assert_eq!((ova.name.as_str(), ova.members.len()), ("web server", 5));
        let ids: Vec<&str> = ova.disks.iter().map(|disk| disk.id.as_str()).collect();
        assert_eq!(ids, ["first", "second", "sata", "empty"]);
        let places: Vec<_> = ova.disks.iter().map(|disk| disk.attachment.clone().unwrap()).collect();
        let expected = [(Bus::Scsi, 0, 10), (Bus::Scsi, 1, 0), (Bus::Sata, 0, 3), (Bus::Ide, 0, 0)];
        for (place, (bus, controller, unit)) in places.iter().zip(expected) {
            assert_eq!((place.bus, place.controller, place.unit), (bus, controller, Some(unit)));
        }
        assert_eq!((places[0].model.as_str(), places[2].model.as_str()), ("VirtualSCSI", "vmware.sata.ahci"));
        let sizes: Vec<u64> = ova.disks.iter().map(|disk| disk.capacity_bytes).collect();
        assert_eq!(sizes, [1 << 30, SECTORS * SECTOR, SECTORS * SECTOR, 16 << 30]);
        assert!(ova.disks[2].format.ends_with("#streamOptimized"));
        assert_eq!(ova.disks[2].file.as_ref().unwrap().name, "web server-disk1.vmdk");
        assert_eq!(ova.disks[3].file, None);
        let error = ova.open_disk(&ova.disks[3]).await.err().unwrap();
        assert!(error.kind == ErrorKind::Unsupported && error.cause.contains("is empty"), "{error}");
        let mut seen = 0;
        let progress = async |bytes| {
            seen = bytes;
            Ok(())
        };
        ova.verify("web.ovf", progress).await.unwrap();
        assert_eq!(seen, descriptor.len() as u64);
        let error = ova.verify("web.mf", async |_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
        let error = ova.verify("other", async |_| Ok(())).await.unwrap_err();
        assert!(error.cause.contains("the member of \"other\""), "{error}");
    });
    let found = evidence(&parts.bytes()).unwrap();
    for (id, fill) in [("first", 3), ("second", 2), ("sata", 1)] {
        let content = &found.iter().find(|(own, _)| own == id).unwrap().1;
        assert_eq!([content[0], content[4096], content[5 * 4096]], [fill, 0, fill + 100], "{id}");
    }
}

#[test]
fn a_changed_member_has_another_hash() {
    let parts = Parts::new();
    let whole = parts.bytes();
    for (disk, algorithm) in [(0, "SHA1"), (1, "SHA512"), (2, "SHA256")] {
        let mut bytes = whole.clone();
        let own = &parts.disks[disk];
        let at = bytes.windows(own.len()).position(|part| part == own).unwrap();
        // A byte behind the fields of the header, which no reader of disks looks at.
        bytes[at + 400] ^= 1;
        refused(&bytes, ErrorKind::Damaged, &format!("its {algorithm} is "));
    }
    let mut bytes = whole.clone();
    let at = bytes.windows(3).position(|part| part == b"vm-").unwrap();
    bytes[at] = b'w';
    with_file(&bytes, async |env| {
        let error = open(&env).await.unwrap().verify("web.ovf", async |_| Ok(())).await.unwrap_err();
        assert!(error.to_string().contains("web.ova (member web.ovf): its SHA256 is"), "{error}");
    });
}

/// A cut OVA is refused, unless only end blocks and padding are missing.
#[test]
fn cut_archives_are_refused() {
    let whole = Parts::new().bytes();
    let expected = evidence(&whole).unwrap();
    let last = whole.len() - 2 * SECTOR as usize;
    for keep in (0..whole.len()).step_by(256) {
        match evidence(&whole[..keep]) {
            Ok(found) => assert!(keep >= last && found == expected, "{keep} bytes are read"),
            Err(error) => assert!(keep < last && error.kind == ErrorKind::Damaged, "{keep}: {error}"),
        }
    }
    let first = whole.windows(4).position(|part| part == b"KDMV").unwrap();
    refused(&whole[..first + 512], ErrorKind::Damaged, "the member \"web server-disk1.vmdk\" is bytes");
    let third = whole.len() - 4096;
    refused(&whole[..third], ErrorKind::Damaged, "the archive was cut; copy, download or export it again");
}

/// A part of the descriptor, what replaces it, and the error.
const WRONG_DESCRIPTORS: [(&str, &str, ErrorKind, &str); 24] = [
    ("Envelope", "Package", ErrorKind::Damaged, "the root element is \"Package\""),
    ("</References>", "", ErrorKind::Damaged, "is not XML that can be read"),
    (
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>",
        "<!DOCTYPE a [<!ENTITY b \"c\">]>",
        ErrorKind::Damaged,
        "is not XML",
    ),
    (
        "web-disk2",
        "web-disk9",
        ErrorKind::Damaged,
        "the file \"web-disk9.vmdk\" of the OVF descriptor is not in the archive",
    ),
    ("web-disk2", "../web-disk2", ErrorKind::Damaged, "\"../web-disk2.vmdk\""),
    ("fileRef=\"file2", "fileRef=\"file9", ErrorKind::Damaged, "fileRef of the disk \"second\" is \"file9\""),
    ("ovf:id=\"file2", "ovf:id=\"file1", ErrorKind::Damaged, "id of a File is \"file1\" again"),
    ("ovf:size=\"", "ovf:size=\"1", ErrorKind::Damaged, "as the OVF descriptor says"),
    ("ovf:size=\"", "ovf:size=\"-", ErrorKind::Damaged, "size of a File is"),
    (
        "ovf:href=\"web-disk2",
        "ovf:chunkSize=\"100\" ovf:href=\"web-disk2",
        ErrorKind::Unsupported,
        "chunkSize of the File",
    ),
    (
        "ovf:href=\"web-disk2",
        "ovf:compression=\"gzip\" ovf:href=\"web-disk2",
        ErrorKind::Unsupported,
        "compression of the File",
    ),
    (
        "ovf:diskId=\"second",
        "ovf:parentRef=\"sata\" ovf:diskId=\"second",
        ErrorKind::Unsupported,
        "without snapshots",
    ),
    ("ovf:diskId=\"second", "ovf:diskId=\"sata", ErrorKind::Damaged, "diskId is \"sata\" again"),
    ("ovf:diskId=\"second", "ovf:diskId=\"other", ErrorKind::Damaged, "HostResource of a disk is \"second\""),
    (
        "ovf:capacity=\"51200\" ovf:d",
        "ovf:capacity=\"51713\" ovf:d",
        ErrorKind::Damaged,
        "the size of the disk is 51200 bytes, expected 52224",
    ),
    (
        "ovf:capacity=\"51200\" ovf:d",
        "ovf:capacity=\"50688\" ovf:d",
        ErrorKind::Damaged,
        "expected 50688 bytes",
    ),
    (
        "ovf:capacity=\"51200\" ovf:d",
        "ovf:capacity=\"0\" ovf:d",
        ErrorKind::Damaged,
        "expected 1 byte to 64 TiB",
    ),
    ("ovf:capacity=\"51200\" ovf:d", "ovf:capacity=\"${disk}\" ovf:d", ErrorKind::Unsupported, "a property"),
    ("byte * 2^30", "byte * 2^64", ErrorKind::Damaged, "capacityAllocationUnits of the disk"),
    ("byte * 2^30", "byte * 2^62", ErrorKind::Damaged, "1 byte to 64 TiB"),
    ("<rasd:Parent>3<", "<rasd:Parent>99<", ErrorKind::Damaged, "Parent of the disk \"second\" is \"99\""),
    ("ovf:/disk/empty", "ovf:/file/file1", ErrorKind::Unsupported, "expected \"ovf:/disk/ID\""),
    ("ovf:/disk/empty", "ovf:/disk/sata", ErrorKind::Unsupported, "is attached twice"),
    (
        "</VirtualSystem>",
        "</VirtualSystem><VirtualSystem/>",
        ErrorKind::Unsupported,
        "the number of VMs (VirtualSystem) is 2",
    ),
];

#[test]
fn descriptors_that_lie_are_refused() {
    for (from, to, kind, expected) in WRONG_DESCRIPTORS {
        let mut parts = Parts::new();
        assert!(parts.descriptor.contains(from), "{from}");
        parts.descriptor = parts.descriptor.replace(from, to);
        refused(&parts.bytes(), kind, expected);
    }
}

#[test]
fn a_disk_of_another_format_is_refused() {
    let mut parts = Parts::new();
    parts.disks[1] = [b"KDMV\x01\0\0\0\x03\0\0\0".to_vec(), vec![0; 4000]].concat();
    let sizes = [0, 1, 2].map(|disk: usize| parts.disks[disk].len() as u64);
    parts.descriptor = descriptor(sizes, SECTORS * SECTOR);
    refused(
        &parts.bytes(),
        ErrorKind::Unsupported,
        "the content is a hosted sparse disk (\"KDMV\"), expected a streamOptimized disk",
    );
}

#[test]
fn a_disk_without_a_controller_comes_last() {
    let mut parts = Parts::new();
    parts.descriptor = parts.descriptor.replace("<rasd:Parent>4</rasd:Parent>", "");
    let disks = replay::ova(&parts.bytes()).unwrap();
    let ids: Vec<&str> = disks.iter().map(|disk| disk.id.as_str()).collect();
    assert_eq!(ids, ["second", "sata", "empty", "first"]);
    assert_eq!(disks[3].attachment, None);
}

/// Texts whose parsing would take minutes, or all of the memory or the stack.
#[test]
fn bombs_are_refused() {
    let ova = |text: String| archive(&[("web.ovf", text.as_bytes())]);
    let entities: String = (1..40).map(|n| format!("<!ENTITY e{n} \"&e{};&e{};\">", n - 1, n - 1)).collect();
    let entities = format!("<!DOCTYPE a [<!ENTITY e0 \"boom\">{entities}]><Envelope>&e39;</Envelope>");
    let spaces: String = (0..1000).map(|n| format!("<a xmlns:b{n}=\"c\">")).collect();
    let attributes: String = (0..1000).map(|n| format!(" b{n} = 'c'")).collect();
    let cases = [
        (entities, "is not XML that can be read"),
        (spaces, "the number of namespaces is 1000"),
        (format!("<Envelope{attributes}/>"), "the number of attributes of an element is 1000"),
        ("<a>".repeat(1 << 18), "is not XML that can be read"),
        ("<a>".repeat(100_000) + &"</a>".repeat(100_000), "the root element is \"a\""),
        (" ".repeat((4 << 20) + 1), "the length in bytes"),
    ];
    for (text, expected) in cases {
        refused(&ova(text), ErrorKind::Damaged, expected);
    }
}

fn members(bytes: &[u8]) -> Result<Vec<Member>> {
    let mut walk = Walk::new(FILE, bytes.len() as u64);
    while let Some(part) = walk.wanted() {
        walk.feed(&bytes[part.start as usize..part.end as usize])?;
    }
    walk.finish()
}

#[test]
fn long_names_and_large_sizes() {
    let long = "n".repeat(300);
    let record = |key: &str, value: &str| {
        let rest = format!(" {key}={value}\n");
        // Three digits for these lengths.
        format!("{}{rest}", rest.len() + 3)
    };
    let gnu = [
        header("././@LongLink", 301, b'L'),
        padded(format!("{long}\0").as_bytes()),
        header("n", 3, b'0'),
        padded(b"abc"),
    ]
    .concat();
    let records = record("path", &long) + "11 mtime=1\n" + "9 size=3\n";
    let pax = [
        header("PaxHeaders/n", records.len() as u64, b'x'),
        padded(records.as_bytes()),
        header("n", 0, b'0'),
        padded(b"abc"),
    ]
    .concat();
    let global = [header("g", 11, b'g'), padded(b"11 mtime=1\n"), gnu.clone()].concat();
    for bytes in [&gnu, &pax, &global] {
        let end = bytes.len() as u64;
        let found = members(bytes).unwrap();
        assert_eq!(found, [Member { name: long.clone(), at: end - 512..end - 509 }]);
    }
    let mut split = header("name", 0, b'0');
    put(&mut split, 345, b"./folder");
    sum(&mut split);
    assert_eq!(members(&split).unwrap()[0].name, "folder/name");
    // A member of 10 GiB, and one behind it.
    let large = 10_u64 << 30;
    let mut first = header("first", 0, 0);
    put(&mut first, 124, &[0x80, 0, 0, 0]);
    put(&mut first, 128, &large.to_be_bytes());
    sum(&mut first);
    let mut walk = Walk::new(FILE, large + 2048);
    assert_eq!(walk.wanted(), Some(0..512));
    walk.feed(&first).unwrap();
    assert_eq!(walk.wanted(), Some(large + 512..large + 1024));
    walk.feed(&header("second", 5, b'0')).unwrap();
    walk.feed(&[0; 512]).unwrap();
    assert_eq!(walk.finish().unwrap()[0].at, 512..large + 512);
}

#[test]
fn headers_that_lie_are_refused() {
    use ErrorKind::{Damaged, Unsupported};
    let changed = |at: usize, bytes: &[u8]| {
        let mut block = header("web.ovf", 0, b'0');
        put(&mut block, at, bytes);
        sum(&mut block);
        block
    };
    let mut broken = header("web.ovf", 0, b'0');
    broken[0] = b'v';
    let sparse = b"23 GNU.sparse.major=1\n\n".to_vec();
    let cases: Vec<(Vec<u8>, ErrorKind, &str)> = vec![
        (broken, Damaged, "is this an OVA (an uncompressed tar)"),
        (vec![0x1f; 600], Damaged, "the checksum, in or behind the header at byte 0, is not a number"),
        (changed(124, b"9"), Damaged, "the size of a member"),
        (changed(124, &[0xff; 12]), Damaged, "the size of a member"),
        (changed(124, &[0x80, 0, 0, 0, 0x7f]), Damaged, "the size of a member"),
        (changed(124, b"77777777777\0"), Damaged, "the member \"web.ovf\" is bytes 512 to 8589935103"),
        (changed(156, b"5"), Unsupported, "the type '5' of \"web.ovf\""),
        (changed(156, b"2"), Unsupported, "expected regular files only"),
        (changed(0, &[0; 100]), Damaged, "the length of a member's name"),
        (changed(0, b"\xff\xff"), Unsupported, "not UTF-8"),
        ([header("a", 0, b'0'), header("./a", 0, b'0')].concat(), Damaged, "\"a\" again"),
        (header("a", 65_537, b'x'), Damaged, "1 to 65536 bytes"),
        (header("a", 10, b'x'), Damaged, "a member that does not follow"),
        ([header("a", 5, b'x'), padded(b"9 a=b")].concat(), Damaged, "a pax record"),
        ([header("a", 10, b'x'), padded(b"10 size=x\n")].concat(), Damaged, "the pax record size"),
        ([header("a", 22, b'x'), padded(&sparse[..22])].concat(), Damaged, "a pax record"),
        ([header("a", 9, b'x'), padded(b"9 path=b\n")].concat(), Damaged, "a member that does not follow"),
        (header("a", 0, b'0').repeat(1), Damaged, "the number of OVF descriptors"),
    ];
    for (bytes, kind, expected) in cases {
        refused(&bytes, kind, expected);
    }
    let sparse = [header("a", 22, b'x'), padded(b"22 GNU.sparse.major=1\n")].concat();
    refused(&sparse, Unsupported, "make the archive without --sparse");
    let many: Vec<u8> = (0..5000).flat_map(|n| header(&format!("m{n}"), 0, b'0')).collect();
    refused(&many, Unsupported, "more than 4096 headers");
}

#[test]
fn manifests_that_lie_are_refused() {
    for (text, expected) in [
        ("SHA256(a)= 00", "line 1 is"),
        ("MD5(a)= d41d8cd98f00b204e9800998ecf8427e", "with SHA1, SHA256 or SHA512"),
        ("SHA1()= da39a3ee5e6b4b0d3255bfef95601890afd80709", "line 1 is"),
        (
            "SHA1(a)= da39a3ee5e6b4b0d3255bfef95601890afd80709\nSHA1(a)= da39a3ee5e6b4b0d3255bfef95601890afd80709",
            "another hash of \"a\"",
        ),
    ] {
        let error = Manifest::parse("web.mf", text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let text = "SHA1(a (2).vmdk)= da39a3ee5e6b4b0d3255bfef95601890afd80709\n";
    let manifest = Manifest::parse("web.mf", text.as_bytes()).unwrap();
    assert_eq!(manifest.hash_of("a (2).vmdk").unwrap().algorithm, Algorithm::Sha1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_archives_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), keep in any::<prop::sample::Index>()) {
        let mut bytes = Parts::new().bytes();
        let head = 12_000.min(bytes.len());
        for (at, value) in changes {
            let at = at.index(head);
            bytes[at] = value;
            // Most changes are in texts; a header with a right checksum gets further.
            let block = at / 512 * 512;
            if bytes[block + 257..].starts_with(b"ustar") {
                sum(&mut bytes[block..block + 512]);
            }
        }
        let _ = replay::ova(&bytes);
        let cut = keep.index(bytes.len());
        let _ = replay::ova(&bytes[..cut]);
    }
}

#[test]
fn disks_get_the_slots_of_their_addresses_or_free_ones() {
    let at = |bus, controller, unit| Attachment { bus, controller, unit, model: String::new() };
    let all = [
        Some(at(Bus::Scsi, 0, None)),
        Some(at(Bus::Scsi, 0, Some(0))),
        Some(at(Bus::Scsi, 0, Some(7))),
        Some(at(Bus::Scsi, 0, Some(0))),
        Some(at(Bus::Scsi, 4, Some(0))),
        Some(at(Bus::Ide, 1, None)),
        Some(at(Bus::Ide, 1, Some(1))),
        Some(at(Bus::Ide, 1, None)),
        None,
        Some(at(Bus::Sata, u32::MAX, Some(u32::MAX))),
    ];
    let slots = slots(all.iter().map(Option::as_ref));
    let texts: Vec<_> =
        slots.iter().map(|slot| slot.map_or(String::new(), |slot| slot.to_string())).collect();
    assert_eq!(texts, ["scsi0:1", "scsi0:0", "", "", "", "ide1:0", "ide1:1", "", "", ""]);
}
