package Leasehold::LockManager;

# Makes claims. One keychain process, started here, looks after them all.
#
# In:    names of resources. Out: Leasehold::Claim objects; a call, or the end of this process, when one is lost.
# Never: touches what another process made, and never hides that a claim is lost.

use strict;
use warnings;

use Carp  ();
use POSIX ();
use Scalar::Util qw(blessed refaddr weaken);
use Time::HiRes ();

use Leasehold::Claim;
use Leasehold::Error;
use Leasehold::Keychain;
use Leasehold::Parameters;
use Leasehold::Process;

our $VERSION = '0.2.0';

# The last request of a claim is repeated for ten seconds; then the keychain says that the outcome is unknown.
my $RELEASE_LIMIT = 25;
# A program that is told to terminate has this many seconds, or a quarter of the ttl.
my $GRACE_MAX   = 5;
my $GRACE_SHARE = 0.25;
# The exit code of a program that could not release its claim.
my $EXIT_FAILED = 125;

# What a keychain keeps back of a ttl, at most this share and this many seconds. Half of it is left to take up its claims.
my $MARGIN_SHARE = 0.05;
my $MARGIN_MAX   = 1;
# How often one claim is asked of another keychain because its keychain has died.
my $RESTARTS_MAX = 5;

# How often, and after how many seconds, a claim is repeated whose predecessor was interrupted a moment ago.
my $TRIES_MAX = 200;
my $TRY_PAUSE = 0.02;

my %MANAGERS;    # all of this process, weak

sub new {
    my ( $class, @arg ) = @_;
    my %arg = @arg % 2 ? ( url => @arg ) : @arg;
    return Leasehold::Process::undisturbed(
        sub {
            my $self = bless { %{ Leasehold::Parameters::of_manager( \%arg ) }, %{ _nothing() } }, $class;
            $self->_keychain;
            weaken( $MANAGERS{ refaddr $self } = $self );
            return $self;
        }
    );
}

sub claim {
    my ( $self, @arg ) = @_;
    my %arg = @arg % 2 ? ( resource => @arg ) : @arg;
    my $claim = Leasehold::Process::undisturbed( sub { return $self->_claim( \%arg ) } );
    Carp::carp('a claim that is not kept in a variable is released at once') if !defined wantarray;
    return $claim;
}

# The resources that this manager holds or waits for, as the keychain tells.
sub list {
    my ($self) = @_;
    return Leasehold::Process::undisturbed( sub { return $self->_keychain->ask( { op => 'list' } )->{claims} } );
}

sub ping {
    my ($self) = @_;
    return Leasehold::Process::undisturbed( sub { return $self->_keychain->ask( { op => 'ping' } ) } );
}

sub keychain_pid {
    my ($self) = @_;
    return Leasehold::Process::undisturbed( sub { return $self->_keychain->pid } );
}

# Releases everything, newest first, and ends the keychain. The first failure is thrown when all is done.
sub close {
    my ($self) = @_;
    return Leasehold::Process::undisturbed( sub { return $self->_close } );
}

sub _claim {
    my ( $self, $arg ) = @_;
    my $line = Leasehold::Parameters::of_claim($arg);
    $line->{lead} = $self->_grace($arg) if !defined $line->{lead} && $self->_terminates($arg);
    # Under the same key it is the same claim, also for another keychain.
    $line->{key} = Leasehold::Process::fresh_key();
    my $session = Leasehold::Process::session();
    $line->{session} = $session if defined $session;
    my ( $resource, $timeout ) = ( "$arg->{resource}", $line->{timeout} );
    $self->_refuse_second($resource);
    my $keychain = $self->_keychain;
    $timeout = $self->{timeout} if !defined $timeout;
    $self->{early} = {} if !%{ $self->{claiming} };
    local $self->{claiming}{$resource} = {};
    my ( $claim, $tries, $restarts );
    my $end = $timeout ? Leasehold::Keychain::now() + $timeout : undef;
    until ($claim) {
        $claim = eval {
            $keychain->ask(
                $line,
                limit => defined $timeout ? $timeout + $RELEASE_LIMIT : undef,
                undo  => { op => 'release', resource => $resource },
                about => sub { return %{ $self->{claiming}{$resource} } },
                then  => sub { return $self->_acquired( $keychain, $arg, $line, $_[0] ) },
            );
        };
        last if $claim;
        my $error = $@;
        if ( _has_died( $keychain, $error ) && !$self->{is_closed} && ++$restarts <= $RESTARTS_MAX ) {
            $keychain = $self->_keychain;
            $line->{timeout} = _at_least_a_moment( $end - Leasehold::Keychain::now() ) if defined $end;
            next;
        }
        die $error if !_is_leftover($error) || ++$tries == $TRIES_MAX;
        $keychain->notify( { op => 'release', resource => $resource } );
        Time::HiRes::sleep($TRY_PAUSE);
    }
    return $claim;
}

# Whether the keychain has yet to forget a claim that an exception interrupted; it needs to be told again. Another claim
# than such a one we would know of, and refuse the second ourselves.
sub _is_leftover {
    my ($error) = @_;
    return blessed $error && $error->isa('Leasehold::Error::AlreadyClaimed') && !$error->{is_ours};
}

# Whether the keychain was killed before it answered. One that was told to end has said so.
sub _has_died {
    my ( $keychain, $error ) = @_;
    return $keychain->is_gone && blessed $error && $error->isa('Leasehold::Error::KeychainGone');
}

sub _at_least_a_moment {
    my ($seconds) = @_;
    return $seconds > 0.001 ? $seconds : 0.001;
}

sub _acquired {
    my ( $self, $keychain, $arg, $line, $answer ) = @_;
    my $claim = Leasehold::Claim->new(
        manager  => $self,
        keychain => $keychain,
        owner    => Leasehold::Process::worker(),
        resource => $arg->{resource},
        id       => $answer->{claim},
        token    => $answer->{token},
        items    => $answer->{items},
        session  => $answer->{session},
        until    => $answer->{until},
        ttl      => $self->_ttl($arg),
        lead     => $line->{lead},
        max_hold => defined $line->{max_hold} ? $line->{max_hold} : $self->{max_hold},
        since    => Leasehold::Keychain::now(),
        on_lost  => defined $arg->{on_lost} ? $arg->{on_lost} : $self->{on_lost},
        number   => ++$self->{last_number},
    );
    weaken( $self->{claims}{ $claim->id }       = $claim );
    weaken( $self->{newest}{ $claim->resource } = $claim );
    my $early = delete $self->{early}{ $claim->id };
    $self->_note_lost( $claim, $early ) if $early;
    return $claim;
}

# The keychain would refuse it, too. But a request that is left by an exception is taken back by its resource, and that
# must never meet another claim.
sub _refuse_second {
    my ( $self, $resource ) = @_;
    my $newest  = $self->{newest}{$resource};
    my $is_held = $newest && !$newest->{is_over} && !$newest->{error};
    return if !$is_held && !$self->{claiming}{$resource};
    return Leasehold::Error::AlreadyClaimed->throw(
        message  => "this manager already has a claim on '$resource'; release it first, or use another manager",
        resource => $resource,
        is_ours  => 1,
    );
}

# Whether the keychain's claim on its resource is this one: to the keychain, a claim is its resource.
sub is_newest {
    my ( $self, $claim ) = @_;
    my $resource = $claim->resource;
    my $newest   = $self->{newest}{$resource};
    return !$self->{claiming}{$resource} && ( !$newest || refaddr $newest == refaddr $claim );
}

# Called when a claim's object is gone.
sub forget {
    my ( $self, $claim ) = @_;
    delete $self->{newest}{ $claim->resource } if $self->is_newest($claim);
    delete $self->{claims}{ $claim->id };
    return;
}

sub _terminates {
    my ( $self, $arg ) = @_;
    my $on_lost = defined $arg->{on_lost} ? $arg->{on_lost} : $self->{on_lost};
    return !ref $on_lost;
}

sub _ttl {
    my ( $self, $arg ) = @_;
    return defined $arg->{ttl} ? $arg->{ttl} : $self->{ttl};
}

# How long before the server could hand over the resource this process is told to end.
sub _grace {
    my ( $self, $arg ) = @_;
    return $self->{grace} if defined $self->{grace};
    my $share = $self->_ttl($arg) * $GRACE_SHARE;
    return $share < $GRACE_MAX ? $share : $GRACE_MAX;
}

# What a process begins with: claims by id, and the newest of each resource, both weak; events that came before their
# claim was known; resources that are being claimed; claims that were lost and not reported yet; claims whose keychain died.
sub _nothing {
    return { claims => {}, newest => {}, early => {}, claiming => {}, lost => [], orphans => [] };
}

# The running keychain of this process; a child that was forked, or one whose keychain was killed, starts its own.
sub _keychain {
    my ($self) = @_;
    Leasehold::Error::KeychainGone->throw( message => 'the lock manager is closed' ) if $self->{is_closed};
    my $keychain = $self->{keychain};
    return $keychain if $keychain && $keychain->is_mine && !$keychain->is_gone;
    if ( $keychain && !$keychain->is_mine ) {
        my $nothing = _nothing();
        @{$self}{ keys %{$nothing} } = values %{$nothing};
    }
    # Signals and the environment belong to the first thread of a program.
    Leasehold::Parameters::invalid('only the first thread of a program can make claims') if Leasehold::Process::worker() ne $$;
    weaken( my $manager = $self );
    $self->{keychain} = Leasehold::Keychain->start(
        command  => [ $self->_command ],
        env      => $self->{env},
        on_event => sub { $manager && $manager->_heard( $_[0] ) },
        on_idle  => sub { $manager && $manager->_tell_lost },
    );
    return $self->{keychain};
}

sub _command {
    my ($self) = @_;
    my $program = $self->{command};
    if ( !defined $program ) {
        my $named = $ENV{LEASEHOLD_BIN};
        $program = defined $named && $named ne q{} ? $named : 'leasehold';
    }
    return ( $program, 'keychain', '--parent', $$, map { ( "--$_->[0]", $_->[1] ) } @{ $self->{flags} } );
}

# Takes note of an event. Runs inside of every call, so it runs no code of the program.
sub _heard {
    my ( $self, $event ) = @_;
    my $what = $event->{event};
    if ( $what eq 'gone' ) {
        my $now = Leasehold::Keychain::now();
        for my $claim ( grep { defined && $_->is_orphaned } values %{ $self->{claims} } ) {
            $claim->{orphaned} = $now;
            push @{ $self->{orphans} }, $claim;
        }
        return;
    }
    if ( $what eq 'waiting' ) {
        my $claiming = $self->{claiming}{ $event->{resource} } or return;
        @{$claiming}{qw(holder position)} = @{$event}{qw(holder position)};
        return;
    }
    my $claim = defined $event->{claim} ? $self->{claims}{ $event->{claim} } : undef;
    if ( $what eq 'lost' ) {
        if    ($claim)                   { $self->_note_lost( $claim, $event ) }
        elsif ( %{ $self->{claiming} } ) { $self->{early}{ $event->{claim} } = $event }
    }
    $claim->{is_released} = 1 if $claim && $what eq 'released';
    return;
}

sub _note_lost {
    my ( $self, $claim, $event ) = @_;
    return if $claim->{is_over} || $claim->{error};
    $claim->{error} = $claim->lost_error( $event->{reason}, $event->{detail} );
    push @{ $self->{lost} }, $claim;
    return;
}

# Has another keychain go on with the claims of one that died. What it can't renew in time is lost.
sub _take_up_orphans {
    my ($self) = @_;
    my @orphans = splice @{ $self->{orphans} };
    return if !@orphans;
    my $keychain = eval { $self->_keychain };
    for my $claim (@orphans) {
        next if $keychain && eval { $self->_take_up( $claim, $keychain ); 1 };
        my $error  = $@;
        my $reason = blessed $error && $error->isa('Leasehold::Error::Ended') ? 'ended' : 'keychain-gone';
        $self->_note_lost( $claim, { reason => $reason, detail => 'the keychain process has ended' } );
    }
    return;
}

# The keychain had not called the claim lost, so there was at least the lead and the margin left when it died.
sub _take_up {
    my ( $self, $claim, $keychain ) = @_;
    my $margin = $claim->{ttl} * $MARGIN_SHARE;
    $margin = $MARGIN_MAX if $margin > $MARGIN_MAX;
    my $now  = Leasehold::Keychain::now();
    my $seconds = ( $claim->{lead} || 0 ) + $margin / 2 - ( $now - $claim->{orphaned} );
    die "too late\n" if $seconds <= 0;
    my %line = ( op => 'take-up', within => $seconds, token => $claim->token, claim => $claim->id );
    $line{$_} = $claim->{$_} for grep { defined $claim->{$_} } qw(resource ttl lead);
    $line{max_hold} = _at_least_a_moment( $claim->{max_hold} - ( $now - $claim->{since} ) ) if defined $claim->{max_hold};
    return $keychain->ask(
        \%line,
        limit => $seconds,
        undo  => { op => 'release', resource => $claim->resource },
        then  => sub {
            @{$claim}{qw(keychain until)} = ( $keychain, $_[0]{until} );
            delete $claim->{orphaned};
            return 1;
        },
    );
}

# Calls back, or ends this process, for each claim that was lost. What the first callback throws is thrown when all have
# been called.
sub _tell_lost {
    my ($self) = @_;
    $self->_take_up_orphans;
    my @thrown;
    while ( my $claim = shift @{ $self->{lost} } ) {
        if ( ref $claim->{on_lost} ) {
            # It may run commands in the middle of anything: $? stays as it was, unless it exits.
            my $status = $?;
            eval { $claim->{on_lost}->( $claim, $claim->{error} ); 1 } or push @thrown, $@;
            $? = $status;
            next;
        }
        _warn("$claim->{error}this process is terminated (on_lost)\n");
        Leasehold::Process::terminate( defined $claim->{lead} ? $claim->{lead} : $self->_grace($claim) );
    }
    return if !@thrown;
    my $first = shift @thrown;
    _warn($_) for @thrown;
    die $first;
}

sub _close {
    my ($self) = @_;
    my $keychain = $self->{keychain};
    $self->{is_closed} = 1;
    return 1 if !$keychain || !$keychain->is_mine;
    my @errors;
    my @mine = grep { defined && $_->is_mine } values %{ $self->{claims} };
    for my $claim ( sort { $b->{number} <=> $a->{number} } @mine ) {
        # What is lost was reported to on_lost.
        my $was_lost = $claim->{error};
        eval { $claim->give_up; 1 } or $was_lost or push @errors, $@;
    }
    eval { $keychain->shut_down($RELEASE_LIMIT); 1 } or push @errors, $@;
    delete $self->{keychain};
    # A keychain that was killed has nothing left to release; its claims have said so.
    @errors = grep { !ref || !$_->isa('Leasehold::Error::KeychainGone') } @errors;
    die $errors[0] if @errors;
    return 1;
}

# Called where nothing can be thrown, outside of every `local`: an exit must keep its code.
sub destroy_failed {
    my ( $self, $error ) = @_;
    my $then = $self->{on_destroy_failure};
    _warn("${error}a destructor could not release the claim; on_destroy_failure is '$then'\n");
    POSIX::abort() if $then eq 'abort';
    return         if $then ne 'exit';
    # In END blocks and later there is nothing to leave any more, only a code to set.
    if ( ${^GLOBAL_PHASE} eq 'RUN' ) { exit $EXIT_FAILED }
    $? = $EXIT_FAILED if !$?;
    return;
}

sub release_limit { return $RELEASE_LIMIT }

# A program may make every warning fatal.
sub _warn {
    my ($text) = @_;
    local $@;
    eval { warn $text; 1 } or print {*STDERR} $text;
    return;
}

sub DESTROY {
    my ($self) = @_;
    delete $MANAGERS{ refaddr $self };
    local ( $@, $! );
    local $SIG{__DIE__};
    # All its claims are gone: there is nothing left to fail.
    eval { $self->_close };
    return;
}

# Runs after the END blocks of every module and program that was compiled later, so that these still hold their claims.
END {
    for my $manager ( grep { defined } values %MANAGERS ) {
        my $error;
        {
            local ( $@, $! );
            local $SIG{__DIE__};
            eval { $manager->_close; 1 } or $error = $@;
        }
        $manager->destroy_failed($error) if defined $error;
    }
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::LockManager - claims resources on a Leasehold server

=head1 SYNOPSIS

    use Leasehold::LockManager;

    my $manager = Leasehold::LockManager->new(url => 'http://locks:4080', ttl => 60);
    {
        my $claim = $manager->claim(resource => 'db/main', timeout => 600, data => { host => $hostname });
        write_to_database(fencing_token => $claim->token);
    }   # released here

=head1 DESCRIPTION

A manager starts one process, C<leasehold keychain>, that makes all requests, renews what is held, and says when a claim
is lost, before the server can hand the resource to anyone else. If your program dies, however it dies, the keychain
gives everything up at once.

Every failure is thrown as a L<Leasehold::Error>.

Names and data are strings of characters: decode what you read from files or arguments, as everywhere in Perl.

=head1 METHODS

=head2 new

    my $manager = Leasehold::LockManager->new(%parameters);
    my $manager = Leasehold::LockManager->new($url);

Starts a keychain. All parameters are optional; times are in seconds.

=over

=item url

The server, or several that are tried in turn: a reference to an array, or separated by commas. Otherwise
C<LEASEHOLD_ADDR>, otherwise C<http://127.0.0.1:4080>.

=item key, key_file

An access key, or the file that has it. Otherwise C<LEASEHOLD_KEY> or C<LEASEHOLD_KEY_FILE>.

=item ttl

How long claims stay active without renewal, if they don't say otherwise: 30.

=item timeout

How long claims wait for their turn, if they don't say otherwise: for ever.

=item max_hold

The longest time that a claim is held, if it does not say otherwise; then it is lost. For ever if it is not given.

=item api_version

The version of the server's interface, C<v1> if it is not given.

=item on_lost

What happens when a claim is lost, if the claim does not say otherwise: C<terminate>, which is the default, or a code
reference. See L</WHEN A CLAIM IS LOST>.

=item grace

For C<terminate>: how long before the server could hand over the resource your process is told to end. A quarter of the
ttl, at most 5, if it is not given.

=item on_destroy_failure

What happens when a destructor can't release its claim, after a warning: C<abort> (SIGABRT), which is the default, C<exit> with code 125,
or C<warn>, nothing more.

=item command

The C<leasehold> command. Otherwise C<LEASEHOLD_BIN>, otherwise it is looked for in the C<PATH>.

=back

=head2 claim

    my $claim = $manager->claim(%parameters);
    my $claim = $manager->claim($resource);
    my $claim = $manager->claim($resource, %parameters);

Waits for the turn of a new claim and returns it as a L<Leasehold::Claim>. Parameters, all but the first optional:

=over

=item resource

What to hold. A manager has one claim on each resource at a time.

=item shared

True: hold it together with others that share it, as readers do.

=item slots

C<[1, 5]>: one of its five equal slots. All who use the resource name the same number; C<slots> of the claim has those that were granted.

=item also

A reference to an array of further resources, which are held together with the first or not at all. Each is a name, or a
hash with C<resource> and C<shared> or C<slots>.

=item ttl, timeout, max_hold, on_lost

As for C<new>. A C<timeout> of 0 does not wait.

=item data

Kept with the claim and shown to others: a reference to anything that can be written as JSON, or a string that is JSON.

=item lead

How many seconds before the end of the ttl the claim is called lost. For C<terminate> it is the grace if it is not given.

=back

C<NotAcquired> is thrown when the time is over. If an exception leaves C<claim>, for example from a handler of C<SIGALRM>,
the claim leaves the queue.

Your process is one worker, a I<session>: C<Leasehold::Error::Deadlock> is thrown at once if the claim would wait for ever, because your process
holds what another one needs first, or because it was started by a C<leasehold run> that holds the resource (C<LEASEHOLD_SESSION>).

=head2 list

A reference to an array of hashes with C<resource>, C<held>, C<claim> and C<token>.

=head2 ping

Asks the keychain for a sign of life: a hash with C<version> and C<pid>.

=head2 keychain_pid

The number of the keychain process.

=head2 close

Releases everything, newest first, and ends the keychain. If a release fails, that is thrown when all is done. The end of
the program does the same, in an C<END> block.

=head2 destroy_failed, forget, is_newest, release_limit

For this library.

=head1 WHEN A CLAIM IS LOST

A claim is lost when it could not be renewed in time, when the server ended it (an administrator revoked it), or when
C<max_hold> is over. A keychain that was killed is started again and goes on with its claims; those that it can't renew before
the server could hand them over are lost.

C<terminate> prints why and sends C<SIGTERM> to your process. If it has a handler for that signal, or ignores it, and still
runs after the grace, C<SIGKILL> follows.

A code reference is called with the claim and a C<Leasehold::Error::Lost>, once. It runs as a signal handler does in Perl:
between two operations, also while your program waits in C<sleep>, C<system>, C<read> or C<claim>. It may throw; the
exception appears in the middle of what your program does, as one from a handler of C<SIGALRM> would. If several claims
are lost at once, all callbacks are called first; the first exception is thrown, the others are warnings.

Perl runs no handler inside of a single long operation, for example a query that a database library waits for in C. The loss
is noticed when it returns. The fencing token is what makes a late write harmless.

=head1 PROGRAMS WITH FORKS AND SIGNALS

=over

=item fork

A child never touches its parent's claims: not by using, destroying or leaving them. It can make claims with the
parent's manager; that starts a keychain of its own. To hand a resource over, the parent releases it.

=item exec

Pipes are closed on exec, and the keychain gives everything up.

=item SIGCHLD, wait

The keychain is not a child of your program. A handler of C<SIGCHLD> may be called once while C<new> starts it, as
C<system> does it; there is nothing to reap then.

=item SIGURG

Tells this library that the keychain has something to say (C<SIGIO> where the system can't choose). A handler that was
there before is called, too. Don't replace it while you hold claims.

=item SIGALRM, SIGPIPE

Are not used. C<alarm> around C<claim> works as usual.

=item threads

Only the first thread of a program can make and use claims. Other threads never touch them.

=back

=head1 SEE ALSO

L<Leasehold::Claim>, L<Leasehold::Error>, L<Leasehold::ResourceLock>

=cut
