package dev.spry.core.sums;

import static dev.spry.core.sums.SumsTest.hex;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

import dev.spry.core.BadAnswerException;
import dev.spry.core.SpryException;
import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.Vectors;

/** A device's part in sums that Python's devices played, byte for byte; and a server that lies. */
class MemberTest {
    private static final List<String> SCORES = Collections.singletonList("f1");

    /** One device of a sum in the vectors. */
    private static final class Device {
        final JSONObject sum;
        final JSONObject said;
        final Member member;
        Secrets kept;

        Device(String name, int number) throws Exception {
            sum = Vectors.read("sums.json").getJSONObject(name);
            said = sum.getJSONArray("devices").getJSONObject(number);
            kept = new Secrets(hex(said, "mask"), hex(said, "seed"));
            kept.noise = hex(said, "noise");
            member = member(sum.getInt("least"));
        }

        Member member(int least) throws Exception {
            About about = new About(
                    sum.getString("job"), sum.getInt("round"), said.getInt("place"), units(), least, terms());
            return new Member(about, said.getString("identity"), kept, () -> { });
        }

        /** Of the noise; null where there is none. */
        Share share() throws Exception {
            return sum.has("noise")
                    ? new Share(sum.getDouble("noise"), sum.getDouble("clip"), sum.getInt("least")) : null;
        }

        private byte[] terms() throws Exception {
            return share() == null ? new byte[0] : share().terms();
        }

        int[] units() throws Exception {
            JSONArray units = said.getJSONArray("units");
            int[] found = new int[units.length()];
            for (int at = 0; at < found.length; at++) {
                found[at] = units.getInt(at);
            }
            return found;
        }

        byte[] told(String name) throws Exception {
            return hex(said, name);
        }

        /** What is told, with a byte changed. */
        byte[] lie(String name, int at) throws Exception {
            byte[] told = told(name);
            told[at < 0 ? told.length + at : at] ^= 1;
            return told;
        }

        Parts parts(int count, long cap) {
            try {
                assertEquals(sum.getInt("count"), count);
                assertEquals(sum.getInt("cap"), cap);
                Map<String, Tensor> moved = new LinkedHashMap<>();
                float[] head = Vectors.floats(said.getJSONArray("head"));
                moved.put("head", Tensor.of(head, head.length));
                int[] units = units();
                for (int at = 0; at < units.length; at++) {
                    float[] change = Vectors.floats(said.getJSONArray("changes").getJSONArray(at));
                    moved.put("unit " + units[at], Tensor.of(change, change.length));
                }
                if (share() != null) {
                    Parts parts = Changes.noisy(moved, units, share(), member.noise(), count, SCORES);
                    assertArrayEquals(hex(said, "parts"), parts.joined(new byte[0]));
                    return parts;
                }
                JSONObject report = Vectors.read("sums.json").getJSONObject("told").getJSONObject("report");
                report.put("examples", cap / 2);
                Parts parts = Changes.unmasked(moved, units, new Fixed.Told(report, SCORES), cap, count, SCORES);
                assertArrayEquals(hex(said, "parts"), parts.joined(new byte[0]));
                return parts;
            } catch (Exception error) {
                throw new AssertionError(error);
            }
        }

        /** As far as its update. */
        Device masked() throws Exception {
            member.shares(told("roster"));
            member.update(told("sharers"), this::parts);
            return this;
        }
    }

    private static void plays(Device device) throws Exception {
        assertArrayEquals(device.told("card"), device.member.card());
        assertArrayEquals(device.told("shares"), device.member.shares(device.told("roster")));
        assertArrayEquals(device.told("update"), device.member.update(device.told("sharers"), device::parts));
        byte[] vow = device.member.vow(device.told("survivors"));
        assertArrayEquals(device.told("vow"), vow == null ? new byte[0] : vow);
        assertArrayEquals(device.told("opening"), device.member.opening(device.told("vows")));
    }

    @Test
    void threeDevicesSayWhatPythonsSay() throws Exception {
        for (int number = 0; number < 3; number++) {
            plays(new Device("round", number));
        }
    }

    @Test
    void devicesAddTheNoiseThatPythonsAdd() throws Exception {
        for (int number = 0; number < 3; number++) {
            plays(new Device("private", number));
        }
    }

    @Test
    void aServerThatChangesTheNoiseOfARoundIsRefused() throws Exception {
        Device device = new Device("private", 0);
        device.member.card();
        device.sum.put("noise", 0.01);
        refused("sent another terms of the same round before", device.member(3)::card);
    }

    @Test
    void aDeviceThatWouldWeighMoreThanAnotherIsRefused() throws Exception {
        Device device = new Device("private", 0);
        byte[] roster = device.told("roster");
        roster[4] = 7; // its cap
        refused("weigh 7 times as much as another", () -> device.member.shares(roster));
    }

    @Test
    void secretsOfNoiseAreKeptAndAnOlderFileGetsSome() throws Exception {
        Secrets drawn = new Secrets();
        drawn.terms = new byte[] {1, 2};
        assertArrayEquals(drawn.noise, new Secrets(drawn.toJson()).noise);
        assertArrayEquals(drawn.terms, new Secrets(drawn.toJson()).terms);
        JSONObject older = drawn.toJson();
        older.remove("noise");
        older.remove("terms");
        assertEquals(32, new Secrets(older).noise.length);
    }

    @Test
    void devicesOfTwoTeamsSayWhatPythonsSayWhenOthersVanish() throws Exception {
        for (int number = 0; number < 2; number++) {
            plays(new Device("teams", number));
        }
    }

    @Test
    void aDeviceThatStartsAgainSaysTheSame() throws Exception {
        Device device = new Device("teams", 1).masked();
        device.kept = new Secrets(new JSONObject(device.kept.toJson().toString()));
        Member again = device.member(3);
        assertArrayEquals(device.told("shares"), again.shares(device.told("roster")));
        assertArrayEquals(device.told("update"), again.update(device.told("sharers"), device::parts));
        byte[] vow = again.vow(device.told("survivors"));
        assertArrayEquals(device.told("vow"), vow == null ? new byte[0] : vow);
        assertArrayEquals(device.told("opening"), device.member(3).opening(device.told("vows")));
    }

    @Test
    void whatIsKeptIsWhatPythonKeeps() throws Exception {
        Device device = new Device("round", 0).masked();
        JSONObject kept = device.kept.toJson();
        Base64.Encoder base64 = Base64.getEncoder();
        assertEquals(base64.encodeToString(device.told("seed")), kept.getString("seed"));
        assertEquals(base64.encodeToString(device.told("roster")), kept.getString("roster"));
        assertEquals(base64.encodeToString(device.told("sharers")), kept.getString("sharers"));
        assertEquals("", kept.getString("survivors"));
    }

    @Test
    void secretsAreDrawnAnew() throws Exception {
        assertEquals(32, new Secrets().seed.length);
        assertTrue(!Arrays.equals(new Secrets().seed, new Secrets().seed));
    }

    // --- a server that lies ---

    private static void refused(String why, Executable work) {
        SpryException error = assertThrows(TrainingException.class, work);
        assertTrue(error.getMessage().contains(why), error.getMessage());
    }

    @Test
    void sumsOfFewerThanThreeAreHelpedByNobody() throws Exception {
        Device device = new Device("round", 0);
        refused("would open sums of 2 devices", () -> device.member(2));
        refused("would open sums of 3 devices, where its task named 4", () -> device.member(4).shares(device.told("roster")));
    }

    @Test
    void keysThatAreNotTheirDevicesOpenNothing() throws Exception {
        int head = 13; // then the first peer's place, identity and key of the round
        for (int at : new int[] {head + 2, head + 2 + 32}) {
            Device device = new Device("round", 0);
            device.member.shares(device.lie("roster", at));
            device.member.update(device.told("sharers"), device::parts);
            assertThrows(TrainingException.class, () -> device.member.vow(device.told("survivors")));
            assertThrows(TrainingException.class, () -> device.member.opening(device.told("vows")));
        }
    }

    @Test
    void rostersThatDoNotFitAreRefused() throws Exception {
        int head = 13;
        Device device = new Device("round", 0);
        byte[] twice = device.told("roster");
        System.arraycopy(twice, head + 2, twice, head + 66 + 2, 64);
        refused("a key or slot belongs to two devices", () -> device.member.shares(twice));
        byte[] more = device.told("roster");
        more[0] = 9; // devices, with three witnesses
        refused("its roster does not fit the devices in it", () -> device.member.shares(more));
        assertNull(device.kept.roster);
    }

    @Test
    void whatWasToldOnceStays() throws Exception {
        Device device = new Device("round", 2);
        device.member.shares(device.told("roster"));
        refused("the server sent another roster", () -> device.member.shares(device.lie("roster", 4))); // the cap
        device.member.update(device.told("sharers"), device::parts);
        byte[] two = {3};
        refused("are not those of the roster", () -> device.member.update(two, device::parts));
        Device ofFour = new Device("teams", 0).masked();
        byte[] three = ofFour.told("sharers");
        three[0] ^= 8;
        refused("the server sent another sharers", () -> ofFour.member.update(three, ofFour::parts));
        device.member.vow(device.told("survivors"));
        byte[] fewer = device.lie("survivors", 2); // without place 0, or with all but it
        assertThrows(TrainingException.class, () -> device.member.vow(fewer));
    }

    @Test
    void whoIsInTheSumMustFitAndBeOfThreeAndBeVowed() throws Exception {
        Device device = new Device("round", 0).masked();
        byte[] two = device.told("survivors");
        two[2] = 3;
        assertThrows(TrainingException.class, () -> device.member.vow(two));
        byte[] gone = device.told("survivors");
        gone[2] = 6;
        refused("the devices in the sum are not those with shares", () -> device.member.vow(gone));
        byte[] stranger = device.told("survivors");
        stranger[2] = 15;
        refused("the devices in the sum are not those with shares", () -> device.member.vow(stranger));
        refused("got other keys or shares", () -> device.member.vow(device.lie("survivors", -3)));
        refused("messages of other devices are missing", () -> device.member.opening(device.told("vows")));
        device.member.vow(device.told("survivors"));
        refused("witnesses signed this sum", () -> device.member.opening(device.lie("vows", -1)));
        byte[] vows = device.told("vows");
        byte[] fewer = Arrays.copyOf(vows, vows.length - 64);
        fewer[fewer.length - 2 * 64 - 1] = 3; // of which witnesses
        refused("2 of 3 witnesses signed this sum, 3 must have", () -> device.member.opening(fewer));
        byte[] twice = vows.clone();
        System.arraycopy(vows, vows.length - 128, twice, vows.length - 64, 64);
        refused("witnesses signed this sum", () -> device.member.opening(twice));
        assertThrows(BadAnswerException.class, () -> device.member.opening(Arrays.copyOf(vows, vows.length - 1)));
        assertArrayEquals(device.told("opening"), device.member.opening(vows));
    }

    @Test
    void answersThatAreNoneAreRefused() throws Exception {
        Device device = new Device("round", 0);
        byte[] roster = device.told("roster");
        assertThrows(BadAnswerException.class, () -> device.member.shares(Arrays.copyOf(roster, roster.length - 1)));
        assertThrows(BadAnswerException.class, () -> device.member.shares(Arrays.copyOf(roster, roster.length + 1)));
        byte[] nobody = roster.clone();
        nobody[nobody.length - 1] = 99; // a witness
        assertThrows(BadAnswerException.class, () -> device.member.shares(nobody));
        assertThrows(BadAnswerException.class, () -> device.member.update(device.told("sharers"), device::parts));
        assertThrows(BadAnswerException.class, () -> new View(new byte[] {77, 0, 0, 0, 0}));
        View view = new View(new byte[] {3, 44, 1, 0, 0, 9});
        assertEquals(View.Stage.VOW, view.stage);
        assertEquals(0.3, view.wait);
        assertArrayEquals(new byte[] {9}, view.body);
    }
}
