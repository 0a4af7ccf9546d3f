package dev.spry.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class InvitationTest {
    @Test
    void whatPythonWritesIsRead() {
        Invitation found =
                Invitation.in(" spry://join?server=https%3A%2F%2Fspry.example%3A8000&token=a-b_c&key=K&later=x ");
        assertEquals("https://spry.example:8000", found.server);
        assertEquals("a-b_c", found.token);
        assertEquals("K", found.key);
        assertEquals("a-b_c.K", found.pinned());
        assertEquals("", Invitation.in("spry://join?server=a&token=b").key);
        assertEquals("b", Invitation.in("spry://join?server=a&token=b").pinned());
    }

    @Test
    void whatIsNoneIsRefused() {
        String[] wrong = {"", "spry", "https://spry.example/?server=a&token=b", "spry://join?server=a",
            "spry://join?token=b", "spry://leave?server=a&token=b", "spry://join?server=a&token=%zz&token"};
        for (int i = 0; i < wrong.length - 1; i++) {
            String text = wrong[i];
            SpryException told = assertThrows(SpryException.class, () -> Invitation.in(text), text);
            assertTrue(told.getMessage().contains("is no invitation: expected spry://join?"));
        }
        assertEquals("", Invitation.in(wrong[wrong.length - 1]).token);
    }
}
