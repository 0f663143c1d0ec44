package Leasehold::Claim;

# A claim that holds its resource, until it is released, destroyed or lost.
#
# In:    what the manager makes known. Out: the fencing token, and whether the claim still holds.
# Never: says that a claim is held when the server could have handed it over, or acts for another process.

use strict;
use warnings;

use Scalar::Util qw(blessed);

use Leasehold::Error;
use Leasehold::Keychain;
use Leasehold::Parameters;
use Leasehold::Process;

our $VERSION = '0.2.0';

# The event that a claim is released comes right behind the answer. Waiting for it here keeps it from interrupting the
# program later.
my $EVENT_LIMIT = 0.5;

# How long a keychain may take to say that a claim was renewed, once the last moment that it has named is over.
my $LOOK_LIMIT = 1;

# How often a destructor that signal handlers interrupt begins again.
my $TRIES_MAX = 5;

sub new {
    my ( $class, %field ) = @_;
    return bless {%field}, $class;
}

sub resource { my ($self) = @_; return $self->{resource} }
sub id       { my ($self) = @_; return $self->{id} }
sub token    { my ($self) = @_; return $self->{token} }
sub session  { my ($self) = @_; return $self->{session} }

# What it holds, one by one.
sub items {
    my ($self) = @_;
    return $self->{items} || [ { resource => $self->{resource}, mode => 'exclusive', slots => [], token => $self->{token} } ];
}

sub slots { my ($self) = @_; return $self->items->[0]{slots} }
sub is_mine  { my ($self) = @_; return $self->{owner} eq Leasehold::Process::worker() }

# Whether its keychain has died, and nobody goes on with it yet.
sub is_orphaned {
    my ($self) = @_;
    return $self->is_mine && !$self->{is_over} && !$self->{error} && !$self->{orphaned} && $self->{keychain}->is_gone;
}

sub is_lost {
    my ($self) = @_;
    return Leasehold::Process::undisturbed(
        sub {
            $self->_check_owner;
            $self->{keychain}->poll if !$self->{is_over} && !$self->{error};
            $self->_look            if !$self->{is_over} && !$self->{error};
            return $self->{error} ? 1 : 0;
        }
    );
}

sub validate {
    my ($self) = @_;
    return Leasehold::Process::undisturbed(
        sub {
            $self->_check;
            # When the claim is over by this process's own clock, no answer can help any more.
            my $limit = $self->{until} - Leasehold::Keychain::boottime();
            $limit = 0 if $limit < 0;
            $limit += $LOOK_LIMIT;
            $limit = Leasehold::Keychain::answer_limit() if $limit > Leasehold::Keychain::answer_limit();
            return $self->_ask( { op => 'validate' }, limit => $limit )->{remaining};
        }
    );
}

sub refresh {
    my ( $self, @arg ) = @_;
    my %arg = @arg % 2 ? ( ttl => @arg ) : @arg;
    return Leasehold::Process::undisturbed(
        sub {
            $self->_check;
            my %line = ( op => 'refresh' );
            Leasehold::Parameters::check_names( \%arg, { ttl => 1 } );
            $line{ttl} = Leasehold::Parameters::seconds( ttl => $arg{ttl} ) if defined $arg{ttl};
            # The keychain repeats it until the claim is lost.
            $self->_ask( \%line, limit => $self->{ttl} + Leasehold::Keychain::answer_limit() );
            $self->{ttl} = $line{ttl} if defined $line{ttl};
            return 1;
        }
    );
}

sub release {
    my ($self) = @_;
    return Leasehold::Process::undisturbed( sub { return $self->give_up } );
}

# Releases without the care for $@ that callers outside of this library need.
sub give_up {
    my ($self) = @_;
    $self->_check_owner;
    return 1 if $self->{is_over};
    # Its keychain may have died unnoticed; another one goes on with it.
    $self->{keychain}->poll if !$self->{error};
    return 1 if $self->{is_over};
    my ( $keychain, $error ) = @{$self}{qw(keychain error)};
    if ($error) {
        $self->{is_over} = 1;
        $self->_forget;
        die $error;
    }
    # Over once the request is on its way: what a signal handler throws before that leaves the claim to its owner.
    my $is_told = eval {
        $keychain->ask( { op => 'release', resource => $self->{resource} },
            limit => $self->{manager}->release_limit,
            about => sub { return $self->_about },
            begun => sub { $self->{is_over} = 1 } );
        1;
    };
    die $self->_failure($@) if !$is_told;
    $keychain->wait_until( sub { return $self->{is_released} }, $EVENT_LIMIT );
    return 1;
}

# A keychain that ended meanwhile may have released the claim before.
sub _failure {
    my ( $self, $error ) = @_;
    return $error if !blessed $error || !$error->isa('Leasehold::Error');
    if ( $error->isa('Leasehold::Error::Ended') ) {
        return $self->lost_error( 'ended', $error->message );
    }
    return $error if !$error->isa('Leasehold::Error::KeychainGone');
    return Leasehold::Error::Unknown->new(
        message => "the keychain process has ended before it said whether '$self->{resource}' is released", $self->_about );
}

sub lost_error {
    my ( $self, $reason, $detail ) = @_;
    my $why = defined $detail ? $detail : $reason;
    return Leasehold::Error::Lost->new(
        message => "the claim on '$self->{resource}' is lost: $why", reason => $reason, $self->_about );
}

sub _about {
    my ($self) = @_;
    return ( resource => $self->{resource}, claim => $self->{id}, token => $self->{token} );
}

# A question that only a claim which is held can ask. If the answer is that it is not, the claim is lost.
sub _ask {
    my ( $self, $line, %arg ) = @_;
    my $answer = eval {
        $self->{keychain}
            ->ask( { %{$line}, resource => $self->{resource} }, %arg, about => sub { return $self->_about } );
    };
    if ($answer) {
        $self->{until} = $answer->{until};
        return $answer;
    }
    my $error = $@;
    $self->_check;
    if ( blessed $error && $error->isa('Leasehold::Error::Unknown') && $self->_is_due ) {
        $self->{manager}
            ->_note_lost( $self, { reason => 'not-renewed', detail => 'the keychain process does not answer' } );
        $self->{manager}->_tell_lost;
        $self->_check;
    }
    if ( blessed $error && ( $error->isa('Leasehold::Error::Ended') || $error->isa('Leasehold::Error::Lost') ) ) {
        $self->{manager}->_note_lost( $self, { reason => 'ended', detail => $error->message } );
        $self->{manager}->_tell_lost;
        $self->_check;
    }
    die $error;
}

# Whether the last moment until which it certainly held is over, by this process's own clock.
sub _is_due {
    my ($self) = @_;
    return Leasehold::Keychain::boottime() >= $self->{until};
}

# The keychain renews without a word. Once the last moment that it has named is over it is asked, and if it does not say that
# the claim holds, the claim is lost.
sub _look {
    my ($self) = @_;
    return if !$self->_is_due;
    return if eval { $self->_ask( { op => 'validate' }, limit => $LOOK_LIMIT ) };
    # What a callback of the program threw.
    die $@ if !blessed $@ || !$@->isa('Leasehold::Error');
    return;
}

sub _check_owner {
    my ($self) = @_;
    return if $self->is_mine;
    return Leasehold::Error::Foreign->throw(
        message => "the claim on '$self->{resource}' belongs to process $self->{owner}, not to " . Leasehold::Process::worker(),
        $self->_about,
    );
}

sub _check {
    my ($self) = @_;
    $self->_check_owner;
    if ( $self->{is_over} && !$self->{error} ) {
        Leasehold::Error::Ended->throw( message => "the claim on '$self->{resource}' was released", $self->_about );
    }
    $self->{keychain}->poll if !$self->{error};
    die $self->{error}      if $self->{error};
    return;
}

# A claim that is lost may still be active on the server for a moment; the keychain ends it. If there is a newer claim on
# the resource, that has taken its place already.
sub _forget {
    my ($self) = @_;
    return if !$self->{manager}->is_newest($self);
    eval { $self->{keychain}->notify( { op => 'release', resource => $self->{resource} } ) };
    return;
}

# Exceptions can't leave a destructor. The manager decides what a failed release means.
sub DESTROY {
    my ($self) = @_;
    my ( $manager, $keychain ) = @{$self}{qw(manager keychain)};
    # Without a manager and its keychain, late in global destruction, the end of the pipe ends the claim.
    return if !$self->is_mine || !$manager || !$keychain;
    my $error;
    {
        local ( $@, $! );
        local $SIG{__DIE__};
        eval { $self->give_up; 1 } or $error = $@;
        # A signal handler threw before the request was written: nobody else can release the claim.
        for ( 1 .. $TRIES_MAX ) {
            last if $self->{is_over};
            eval { $self->give_up };
        }
        # What is lost was reported to on_lost.
        undef $error if $self->{error};
        $manager->forget($self);
    }
    return if !defined $error;
    # What a signal handler of the program threw while we waited: perl prints it as a warning.
    die $error if !blessed $error || !$error->isa('Leasehold::Error');
    $manager->destroy_failed($error);
    return;
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::Claim - a claim that holds its resource

=head1 SYNOPSIS

    my $claim = $manager->claim('db/main');
    write_to_database(fencing_token => $claim->token);
    $claim->validate;       # throws unless the claim certainly holds at this moment
    $claim->release;        # so does the end of its scope

=head1 DESCRIPTION

The keychain renews a claim by itself, every third of its ttl. A claim belongs to the process that made it: in a forked
child all methods but C<resource>, C<id>, C<token>, C<items>, C<slots> and C<session> throw C<Leasehold::Error::Foreign>, and its end does nothing.

=head1 METHODS

=head2 resource, id, token

The name of the resource, the claim's id on the server, and the fencing token: hand it to what the claim protects, which
refuses smaller tokens than it has seen. The token of a claim on several resources is undefined where their tokens differ; C<items>
has one for each.

=head2 items

A reference to an array with a hash for each resource that it holds: C<resource>, C<mode> (C<exclusive>, C<shared> or C<slots>),
C<slots> and C<token>.

=head2 slots

A reference to an array with the numbers of the slots of its (first) resource, from 1.

=head2 session

The worker that the claim belongs to, as the server knows it. Give it as C<LEASEHOLD_SESSION> to a program that you start while you
hold the claim, so that the program does not wait for what you hold. Undefined if the server does not know sessions.

=head2 validate

Returns for how many seconds the claim certainly holds if no renewal gets through. Throws C<Leasehold::Error::Lost> if
it does not hold, C<Ended> if it was released, C<Unknown> if the keychain does not answer and the claim may still hold. The
answer comes from the keychain's clock; no request is made to the server. A keychain that does not answer until the claim is over
by this process's own clock (CLOCK_BOOTTIME) has lost it.

=head2 is_lost

Whether the claim is lost: by the keychain's word, and by this process's own clock (CLOCK_BOOTTIME) if the keychain does not
answer. C<on_lost> of a claim whose keychain hangs is called by the next method of this library that is used: without a word
of the keychain nothing wakes the program.

=head2 refresh

    $claim->refresh;
    $claim->refresh(ttl => 120);

Renews the claim now. With a ttl, that is the claim's ttl from now on.

=head2 release

Gives the resource up and waits until the server knows. Doing it again is no mistake. Throws C<Leasehold::Error::Lost> if
the claim was lost before, C<Unknown> if the server could not be told within ten seconds; the ttl ends the claim then.

=head2 DESTROY

Releases the claim. An exception can't leave a destructor, so a failed release is a warning, and then what
C<on_destroy_failure> of the L<Leasehold::LockManager> says. A claim that is lost was reported to C<on_lost>; its
destructor reports nothing.

An exception that a signal handler of your program throws while a destructor waits for the server can't leave it,
either: perl prints it as a warning. Call C<release> where that matters.

=head2 new, give_up, is_mine, is_orphaned, lost_error

For this library.

=head1 SEE ALSO

L<Leasehold::LockManager>, L<Leasehold::Error>

=cut
