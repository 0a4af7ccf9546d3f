package dev.spry.core.generation;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

/** Texts are those that Python reads of the same bytes, "replace". */
class WholeCharactersTest {
    private static String oneByOne(int... bytes) {
        WholeCharacters characters = new WholeCharacters();
        StringBuilder text = new StringBuilder();
        for (int one : bytes) {
            text.append(characters.read(new byte[] {(byte) one}, false));
        }
        return text.append(characters.read(new byte[0], true)).toString();
    }

    @Test
    void charactersComeWhole() {
        assertEquals("ö€氷😀", oneByOne(0xc3, 0xb6, 0xe2, 0x82, 0xac, 0xe6, 0xb0, 0xb7, 0xf0, 0x9f, 0x98, 0x80));
        WholeCharacters characters = new WholeCharacters();
        assertEquals("a", characters.read(new byte[] {0x61, (byte) 0xe2, (byte) 0x82}, false));
        assertEquals("€b", characters.read(new byte[] {(byte) 0xac, 0x62}, false));
    }

    @Test
    void oneStandsForWhatIsNone() {
        assertEquals("\ufffdA", oneByOne(0xf0, 0x9f, 0x98, 0x41));
        assertEquals("\ufffd\ufffd", oneByOne(0xc0, 0xff));
        assertEquals("A\ufffd", oneByOne(0x41, 0xe2, 0x82));
    }

    @Test
    void aHalfOfAPairIsNoneByteByByte() {
        assertEquals("\ufffd\ufffd\ufffdA", oneByOne(0xed, 0xa0, 0x80, 0x41));
        assertEquals("\ufffd\ufffdA", oneByOne(0xed, 0xbf, 0x41));
        assertEquals("\ufffd\ufffd", oneByOne(0xed, 0xa0));
        assertEquals("\ud7ff", oneByOne(0xed, 0x9f, 0xbf));
    }
}
