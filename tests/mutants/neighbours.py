"""Rules against local users and against clients with a connection, broken."""

from __future__ import annotations

from tidelog.cli import output
from tidelog.net.origins import Origins
from tidelog.runtime import disk
from tidelog.wire import proof
from tidelog.wire.proof import Prover
from tidelog_gateway.rights import text_check as texts

from mutants.rules import Patch, breaks

SOURCE = "decision 38"


@breaks(SOURCE, "Gateways take printable texts only.", tests=("unit.tidelog.test_printable",), units_only=True)
def take_any_text(patch: Patch) -> None:
    """Texts that a client declares are not checked."""
    patch.setattr(texts, "refuse_text", lambda *_: "")


@breaks(
    SOURCE,
    "Texts in parts of a message are checked as well.",
    tests=("unit.tidelog.test_printable",),
    units_only=True,
)
def check_the_texts_of_the_message_alone(patch: Patch) -> None:
    """Parts pass unread."""
    find = texts._fault_of_texts
    patch.setattr(texts, "_fault_of_texts", lambda part: find(part) if part.OP else "")


@breaks(SOURCE, "Tables show texts with escapes.", tests=("unit.tidelog.test_printable",), units_only=True)
def show_cells_as_they_are(patch: Patch) -> None:
    """Only lines are escaped."""
    patch.setattr(output, "shown_text", lambda cell: str(cell.text))


@breaks(SOURCE, "What the disk makes is for its user only.", tests=("unit.tidelog.test_private",), units_only=True)
def make_files_for_the_group(patch: Patch) -> None:
    """The group of the user may read the files."""
    patch.setattr(disk, "FILE_MODE", 0o640)


@breaks(SOURCE, "A server proves that it has the secret.", tests=("unit.tidelog.wire.test_proof",), units_only=True)
def trust_any_server(patch: Patch) -> None:
    """Any peer that answers is taken for a server of the cluster."""
    patch.setattr(Prover, "refuse_welcome", lambda *_: None)


@breaks(
    SOURCE,
    "A peer that connects proves that it has the secret.",
    tests=("unit.tidelog.wire.test_proof",),
    units_only=True,
)
def let_anybody_in(patch: Patch) -> None:
    """Any third message will do."""
    patch.setattr(Prover, "refuse_proof", lambda *_: None)


@breaks(
    SOURCE, "A server refuses a URL that is not its own.", tests=("unit.tidelog.wire.test_proof",), units_only=True
)
def take_any_url(patch: Patch) -> None:
    """A server does not compare the URL with its own."""
    patch.setattr(proof, "_plain", lambda _url: "")


@breaks(SOURCE, "A proof is of one direction.", tests=("unit.tidelog.wire.test_proof",), units_only=True)
def prove_the_same_in_both_directions(patch: Patch) -> None:
    """The MACs of both ends are equal."""
    mac = Prover._mac
    patch.setattr(Prover, "_mac", lambda self, _end, hello, welcome: mac(self, "", hello, welcome))


@breaks(SOURCE, "Ports of services take no browser.", tests=("unit.tidelog.net.test_origins",), units_only=True)
def admit_pages_to_services(patch: Patch) -> None:
    """As gateways do."""
    admits = Origins.admits
    patch.setattr(
        Origins, "admits", lambda self, origin, host: admits(Origins(self.allowed, self.secure), origin, host)
    )
