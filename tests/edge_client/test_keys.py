"""Keys and signatures, by the vectors of RFC 8032."""

import subprocess
import sys

import pytest

from edge_client import keys
from edge_client.errors import SpryError

# RFC 8032, 7.1: tests 1 and 2
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), VECTORS)
def test_published_vectors(secret, public, message, signature):
    secret, public = keys.encoded(bytes.fromhex(secret)), keys.encoded(bytes.fromhex(public))
    message, signature = bytes.fromhex(message), bytes.fromhex(signature)
    assert keys.public_of(secret) == public
    assert keys.sign(secret, message) == signature
    assert keys.verify(public, message, signature)
    assert not keys.verify(public, message + b"\0", signature)
    assert not keys.verify(public, message, bytes(64))
    assert not keys.verify(keys.public_of(keys.make()), message, signature)


def test_keys_are_read_from_texts_and_files(tmp_path):
    secret = keys.make()
    public, file = keys.public_of(secret), tmp_path / "publisher.key.pub"
    file.write_text(public + "\n")
    assert keys.read_public(public) == keys.read_public(str(file)) == public
    (tmp_path / "publisher.key").write_text(f"secret:{secret}\n")
    assert keys.read_secret(tmp_path / "publisher.key") == secret


def test_a_secret_key_is_not_taken_for_a_public_one(tmp_path):
    file = tmp_path / "publisher.key"
    file.write_text(f"secret:{keys.make()}\n")
    with pytest.raises(SpryError, match="is no public key; give the 43 characters"):
        keys.read_public(str(file))
    with pytest.raises(SpryError, match="cannot be read"):
        keys.read_public("nonsense")
    file.write_text(keys.make())
    with pytest.raises(SpryError, match="holds no secret key"):
        keys.read_secret(file)


@pytest.mark.parametrize("text", ["", "a", "ä" * 43, "A" * 42, "A" * 42 + "B", "A" * 43 + "=", "A" * 44])
def test_other_texts_are_no_keys(text):
    assert keys.decoded(text, keys.KEY_BYTES) is None


def test_a_token_may_name_a_publisher():
    key = keys.public_of(keys.make())
    assert keys.split_token(f"a-b_c.{key}") == ("a-b_c", key)
    assert keys.split_token("a-b_c") == ("a-b_c", None)
    assert keys.split_token(None) == (None, None)
    with pytest.raises(SpryError, match="the token is not whole"):
        keys.split_token(f"a-b_c.{key[:-1]}")


def test_a_device_that_checks_no_signature_does_not_load_the_library():
    code = "import sys, edge_client.client.client; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
